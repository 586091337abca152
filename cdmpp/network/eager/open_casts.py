"""Casts of autocast in an export with open sizes: they are those of the same export at known sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdmpp.operators.aten_layout import tensors_in
from cdmpp.programs.autocast import AUTOCAST


def put_casts(exported: Any, cast: Any, size: Callable[[Any], Any]) -> bool:
    """Make casts nodes of an export with open sizes; which there are depends on types, and on no size.

    Args:
        exported: ``torch.export.ExportedProgram``; it is changed where that can be done.
        cast: a graph of the same nodes at known sizes, in which ``with_casts`` has made its casts.
        size: gives the known size of an open one.

    Returns:
        False where the graphs differ in more than casts, such as operators that were taken apart: nothing is changed.
    """
    old, new = ({node.name: node for node in graph.nodes} for graph in (exported.graph, cast))
    gone = [its for name, its in old.items() if name not in new and tensors_in(its.meta.get("val"))]
    added = [node for name, node in new.items() if name not in old]
    alike = all(_is_alike(node, old[name], size) for name, node in new.items() if name in old)
    if gone or not alike or not all(map(_is_cast, added)):
        return False
    made, before = dict[str, Any](), None
    for node in reversed(cast.nodes):  # each cast stands before what reads it
        if node.name in old:
            before = old[node.name]
            continue
        with exported.graph.inserting_before(before):
            before = made[node.name] = exported.graph.call_function(node.target, (None,), dict(node.kwargs))
        before.meta = {**node.meta}
    known = {**old, **made}
    for node in cast.nodes:
        its = known[node.name]
        its.meta.pop(AUTOCAST, None)
        if node.op != "call_function":
            continue
        for given in node.all_input_nodes:
            if given.name in made and node.name in old:
                its.replace_input_with(known[given.args[0].name], known[given.name])
        if node.name in made:
            its.args = (known[node.args[0].name],)
            its.meta["val"] = _like(node.meta["val"], its.args[0].meta["val"], size)
        else:
            its.kwargs = {**its.kwargs, **({"dtype": node.kwargs["dtype"]} if "dtype" in node.kwargs else {})}
            its.meta["val"] = _like(node.meta["val"], its.meta["val"], size)
    for its in [one for one in exported.graph.nodes if one.name not in new and one.name not in made]:
        if str(getattr(its.target, "__name__", "")).startswith("_assert_tensor_metadata"):
            exported.graph.erase_node(its)
        else:
            its.meta.pop(AUTOCAST, None)
    return True


def _is_cast(node: Any) -> bool:
    import torch

    return node.op == "call_function" and node.target is torch.ops.aten._to_copy.default


def _is_alike(node: Any, its: Any, size: Callable[[Any], Any]) -> bool:
    """True for nodes of one operator whose values have the same shapes, and strides that can be told."""
    values, own = tensors_in(node.meta.get("val")), tensors_in(its.meta.get("val"))
    return node.target == its.target and len(values) == len(own) and all(
        tuple(one.shape) == tuple(map(size, other.shape)) and _strides(one, other, size) is not None
        for one, other in zip(values, own, strict=True)
    )  # fmt: skip


def _strides(value: Any, its: Any, size: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """Return the strides of an open tensor that has those of ``value`` at known sizes; None: they cannot be told.

    They are its own, or where the other type has another layout, those of a tensor without gaps.
    """
    if value.stride() == tuple(map(size, its.stride())):
        return tuple(its.stride())
    found, stride = list[Any](its.stride()), 1
    for axis in sorted(range(value.dim()), key=lambda axis: (value.stride(axis), -axis)):
        if value.stride(axis) != size(stride):
            return None
        found[axis] = stride
        stride = stride * its.shape[axis]
    return tuple(found)


def _like(value: Any, its: Any, size: Callable[[Any], Any]) -> Any:
    """Return the value of a node with open sizes as that of the node with casts, ``value``, which is alike."""
    import torch

    if isinstance(its, tuple | list):
        return type(its)(_like(one, other, size) for one, other in zip(value, its, strict=True))
    strides = _strides(value, its, size) if hasattr(its, "stride") else None
    if strides is None:
        return its
    if its.dtype == value.dtype and strides == tuple(its.stride()):
        return its
    with its.fake_mode:
        return torch.empty_strided(its.shape, strides, dtype=value.dtype)
