"""All rules, by the name of the operator."""

from __future__ import annotations

from cdmpp.network.source.onnx_ops import elementwise, images, layout, products, recurrent, reductions
from cdmpp.network.source.onnx_ops.node import Rules

RULES: Rules = {
    name: rule
    for kind in (elementwise, images, layout, products, recurrent, reductions)
    for name, rule in kind.RULES.items()
}
