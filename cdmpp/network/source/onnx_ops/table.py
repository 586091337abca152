"""All rules, by the name of the operator."""

from __future__ import annotations

from cdmpp.network.source.onnx_ops import (
    elementwise,
    images,
    layout,
    products,
    quantised,
    recurrent,
    reductions,
    selected,
)
from cdmpp.network.source.onnx_ops.node import Rules

RULES: Rules = {
    name: rule
    for kind in (elementwise, images, layout, products, quantised, recurrent, reductions, selected)
    for name, rule in kind.RULES.items()
}
