"""Regions of an exported graph that run otherwise than their operators say: recomputed, without gradients, in a type.

``watch`` marks the first while a model is exported. The others ``torch.export`` hides behind calls of graphs of their
own; ``inlined`` brings them back, with a mark on each node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cdmpp.programs.autocast import AUTOCAST, Autocast

FLAGS = "cdmpp_flags"
"""Key in the ``meta`` of an exported graph of what was taken for something else, a sentence each."""
RECOMPUTED = "cdmpp_recomputed"
"""Key of ``Recomputed`` regions among what is annotated on a node."""
_GRADIENT = "cdmpp_gradient"


class Recomputed(NamedTuple):
    """This is a call of ``torch.utils.checkpoint``."""

    number: int
    """Number of the call in the order in which they begin."""
    stops_early: bool
    """True if it runs again only as far as the backward pass needs; else it runs to its end."""
    waits: bool
    """True if it runs again when a tensor of it is needed (non-reentrant); else it does when its gradient arrives."""
    context_fn: Callable[[], tuple[Any, Any]] | None = None
    """Makes a fresh policy that says what is kept (``create_selective_checkpoint_contexts``); None: nothing is."""


def flags_of(exported: Any) -> tuple[str, ...]:
    """Name parts of a network that its export took for something else, a sentence each."""
    return tuple(exported.graph_module.meta.get(FLAGS, ()))


def recomputed_in(node: Any) -> tuple[Recomputed, ...]:
    """List checkpointed regions around a node, the outermost first; empty unless exported to be trained."""
    return (node.meta.get("custom") or {}).get(RECOMPUTED, ())


def gradients_on(node: Any) -> bool:
    """Return False for a node that runs with gradients off."""
    return bool(node.meta.get(_GRADIENT, True))


def has_gradient(node: Any) -> bool:
    """Return True if a gradient can pass a node: not with gradients off, nor through a detach or whole numbers."""
    import torch

    if not gradients_on(node) or node.target is torch.ops.aten.detach.default:
        return False
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(hasattr(one, "dtype") and (one.dtype.is_floating_point or one.dtype.is_complex) for one in values)


def inlined(exported: Any) -> None:
    """Bring nodes of regions, out of graphs of their own, back into the one that calls them, marked; it is changed."""
    import torch

    regions = {
        torch.ops.higher_order.wrap_with_set_grad_enabled: _gradient_marks,
        torch.ops.higher_order.wrap_with_autocast: _autocast_marks,
    }
    graph, changed = exported.graph_module.graph, False
    while (node := next((one for one in graph.nodes if one.target in regions), None)) is not None:
        marks, inner, operands = regions[node.target](node)
        _spread(exported, node, inner, operands, {**_marks_of(node), **marks})
        if not inner.users:
            graph.erase_node(inner)
        changed = True
    if changed:
        exported.graph_module.recompile()


def _gradient_marks(node: Any) -> tuple[dict[str, Any], Any, tuple[Any, ...]]:
    enabled, inner, *operands = node.args
    return {_GRADIENT: enabled}, inner, tuple(operands)


def _autocast_marks(node: Any) -> tuple[dict[str, Any], Any, tuple[Any, ...]]:
    device, dtype, enabled, caches, inner, *operands = node.args
    outer = node.meta.get(AUTOCAST)
    region = outer.region if outer is not None else node.name
    return {AUTOCAST: Autocast(device, dtype, enabled, caches, region)}, inner, tuple(operands)


def _marks_of(node: Any) -> dict[str, Any]:
    return {key: node.meta[key] for key in (_GRADIENT, AUTOCAST) if key in node.meta}


def _spread(exported: Any, call: Any, inner: Any, operands: tuple[Any, ...], marks: dict[str, Any]) -> None:
    from torch.fx import map_arg

    root, graph = exported.graph_module, call.graph
    module = getattr(root, inner.target)
    values = dict(zip((one for one in module.graph.nodes if one.op == "placeholder"), operands, strict=True))
    results: tuple[Any, ...] = ()
    with graph.inserting_before(call):
        for one in module.graph.nodes:
            if one.op == "output":
                results = map_arg(one.args[0], values.__getitem__)
            elif one.op == "get_attr":
                name = f"{inner.target}_{one.target}".replace(".", "_")
                setattr(root, name, getattr(module, one.target))
                values[one] = graph.get_attr(name)
            elif one.op != "placeholder":
                values[one] = graph.node_copy(one, values.__getitem__)
                values[one].meta = {**one.meta, **marks}
    for user in list(call.users):
        result = results[user.args[1]]
        user.replace_all_uses_with(result)
        graph.erase_node(user)
        exported.graph_signature.replace_all_uses(user.name, result.name)
    graph.erase_node(call)
