"""Images whose parts ranks can have: which values of a network they are, and what its operators need of them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from cdmpp.network.eager.divided import convolutions
from cdmpp.operators.aten import is_pointwise, name_of
from cdmpp.operators.aten_norm import BATCH_NORMS
from cdmpp.plans.strategies.windows import window_of

_LOCAL = (
    *BATCH_NORMS, "dropout", "dropout_", "feature_dropout", "feature_dropout_",
    *("clone", "contiguous", "getitem", "detach"),
)  # fmt: skip
"""Operators that compute a part of an image from that part, next to elementwise ones; of ``cat`` those of channels."""


def _axes(exported: Any) -> int:
    """Axes of the images that are convolved most; 0 without convolutions."""
    counts = [len(one.kernel) for _, one in convolutions(exported)]
    return max(set(counts), key=counts.count, default=0)


def images_in(exported: Any) -> dict[Any, tuple[int, ...]]:
    """Return the nodes whose values are divided, each with the extents of its images."""
    axes, divided = _axes(exported), dict[Any, tuple[int, ...]]()
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if is_image(exported, node, axes) or (
            any(one in divided for one in node.all_input_nodes) and need_of(node, divided, axes) in ("window", "local")
        ):
            value = value[0] if isinstance(value, tuple | list) else value
            divided[node] = tuple(int(size) for size in value.shape[-axes:])
    return divided


def is_image(exported: Any, node: Any, axes: int) -> bool:
    """Return True for an input of the network that has images."""
    value = node.meta.get("val")
    is_given = node.op == "placeholder" and node.name in exported.graph_signature.user_inputs
    return is_given and axes > 0 and hasattr(value, "dim") and value.dim() == axes + 2 and value.is_floating_point()


def need_of(node: Any, divided: Container[Any], axes: int) -> str:
    """Return what an operator that reads a part needs: ``window``, ``local``, ``average`` of images, or ``whole``."""
    name, value = name_of(node), node.meta.get("val")
    if (window := window_of(node, axes)) is not None:
        return "window" if node.args[0] in divided and all(window.kernel) else "whole"
    if name.startswith(("adaptive_avg_pool", "_adaptive_avg_pool")) and set(value.shape[-axes:]) == {1}:
        return "average"
    if name == "mean" and len(node.args) > 1:
        return "average" if {one % (axes + 2) for one in node.args[1]} >= set(range(2, axes + 2)) else "whole"
    if name == "cat" and (node.args[1] if len(node.args) > 1 else 0) % (axes + 2) == 1:
        return "local" if all(one in divided for one in node.all_input_nodes) else "whole"
    if name not in _LOCAL and not is_pointwise(node):
        return "whole"
    others = [one.meta["val"] for one in node.all_input_nodes if one not in divided]
    is_norm = name in BATCH_NORMS
    return "local" if is_norm or all(_is_alike_everywhere(one, axes) for one in others) else "whole"


def _is_alike_everywhere(value: Any, axes: int) -> bool:
    """True for a tensor that does not change along an image."""
    return not hasattr(value, "shape") or value.dim() < axes or set(value.shape[-axes:]) <= {1}
