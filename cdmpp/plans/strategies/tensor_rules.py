"""Rules of tensor parallelism: how operators pass on the axis along which ranks divide a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdmpp.operators.aten import is_pointwise, name_of
from cdmpp.plans.strategies.tensor_shard import NotDivisibleError, Shard, viewed

Placement = Shard | None
"""None: every rank has the whole value."""
VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as", "ravel")
"""Operators that give the same elements another shape; it is that of their result."""
SAME = ("alias", "detach", "clone", "contiguous", "to", "_to_copy", "type_as", "lift_fresh_copy", "dropout", "dropout_")
_ELEMENTWISE = (*SAME, "where", "masked_fill", "masked_fill_", "zeros_like", "ones_like", "full_like", "empty_like")
_OVER_AXIS = ("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum")
_ROW_NORMS = ("layer_norm", "rms_norm", "_fused_rms_norm")
_REDUCTIONS = ("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm", "argmax", "argmin")
PIECES = ("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk", "tensor_split")
CUTS = ("slice", "narrow")
_ATTENTION = "scaled_dot_product_attention"


def shape_of_node(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value, or of the first of several."""
    value = node.meta["val"]
    return tuple(map(int, (value[0] if isinstance(value, tuple | list) else value).shape))


def arguments_of(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by name, those that are left out with their defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(enumerate(node.args)) | node.kwargs  # type: ignore[return-value]
    given = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    return given | dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | dict(node.kwargs)


def passed_on(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Return how the result of an operator is divided; ``NotDivisibleError`` where it needs whole values.

    Args:
        node: none of those whose weights are divided.
        at: each node before it -> how its value is divided.
    """
    divided = [one for one in node.all_input_nodes if at.get(one) is not None]
    if not divided:
        return None
    name = name_of(node)
    if (rule := _RULES.get(name)) is not None:
        return rule(node, at)
    if name in _ELEMENTWISE or is_pointwise(node):
        return _broadcast(node, node.all_input_nodes, at)
    raise NotDivisibleError(*(shard for one in divided if (shard := at[one]) is not None))


def sliced_inputs(node: Any, at: Mapping[Any, Placement], out: Shard) -> list[Any]:
    """Return the inputs of an elementwise operator, or of attention, that every rank has whole and takes a part of."""
    if name_of(node) in _RULES and name_of(node) != _ATTENTION:
        return []
    rank = len(shape_of_node(node))
    found = []
    for one in node.all_input_nodes:
        shape = shape_of_node(one) if hasattr(one.meta.get("val"), "shape") else ()
        axis = out.axis - rank + len(shape)
        if at.get(one) is None and axis >= 0 and shape[axis] > 1:
            found.append(one)
    return found


def _broadcast(node: Any, inputs: Sequence[Any], at: Mapping[Any, Placement]) -> Placement:
    """Elementwise: axes stand from the last one on, and those of one element are repeated."""
    rank = len(shape_of_node(node))
    found = [shard.on(shard.axis + rank - len(shape_of_node(one))) for one in inputs if (shard := at.get(one))]
    if len({(one.axis, one.blocks, not one.origins) for one in found}) > 1:
        raise NotDivisibleError(*found)
    return _joined(found)


def _joined(found: Sequence[Shard]) -> Shard:
    origins = frozenset(node for one in found for node in one.origins)
    return replace(found[0], origins=origins)


def _first(node: Any, at: Mapping[Any, Placement]) -> Shard:
    """How the first input is divided; others must be whole."""
    first, *others = node.all_input_nodes
    if (shard := at[first]) is None or any(at[one] is not None for one in others):
        raise NotDivisibleError(*(found for one in node.all_input_nodes if (found := at[one]) is not None))
    return shard


def _view(node: Any, at: Mapping[Any, Placement]) -> Placement:
    source = node.args[0]
    shard = at[source]
    return None if shard is None else viewed(shard, shape_of_node(source), shape_of_node(node))


def _over_axis(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard = _first(node, at)
    if arguments_of(node)["dim"] % len(shape_of_node(node)) == shard.axis:
        raise NotDivisibleError(shard)
    return shard


def _row_norm(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard = _first(node, at)
    if shard.axis >= len(shape_of_node(node)) - len(node.args[1]):
        raise NotDivisibleError(shard)
    return shard


def _reduction(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard, given, rank = _first(node, at), arguments_of(node), len(shape_of_node(node.args[0]))
    dims = given.get("dim")
    axes = {one % rank for one in ([dims] if isinstance(dims, int) else dims or range(rank))}
    if shard.axis in axes:
        raise NotDivisibleError(shard)
    return shard if given.get("keepdim") else shard.on(shard.axis - sum(one < shard.axis for one in axes))


def _permuted(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard, rank = _first(node, at), len(shape_of_node(node))
    return shard.on(permutation_of(node, rank).index(shard.axis))


def permutation_of(node: Any, rank: int) -> list[int]:
    """Return the axis of the input that each axis of the result was."""
    order = list(range(rank))
    if name_of(node) == "permute":
        return [one % rank for one in node.args[1]]
    if name_of(node) == "movedim":
        sources, targets = ([one] if isinstance(one, int) else list(one) for one in node.args[1:3])
        rest = [one for one in order if one not in [axis % rank for axis in sources]]
        for target, source in sorted(zip((axis % rank for axis in targets), sources, strict=True)):
            rest.insert(target, source % rank)
        return rest
    first, second = node.args[1:3] if name_of(node) != "t" else (0, rank - 1)
    order[first], order[second] = order[second], order[first]
    return order


def _unsqueezed(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard, place = _first(node, at), node.args[1] % len(shape_of_node(node))
    return shard.on(shard.axis + (place <= shard.axis))


def _expanded(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard = _first(node, at)
    return shard.on(shard.axis + len(shape_of_node(node)) - len(shape_of_node(node.args[0])))


def _cat(node: Any, at: Mapping[Any, Placement]) -> Placement:
    inputs, shards = node.args[0], [at.get(one) for one in node.args[0]]
    found = [one for one in shards if one is not None]
    axis = arguments_of(node)["dim"] % len(shape_of_node(node))
    if len(found) < len(inputs) or len({one.axis for one in found}) > 1:
        raise NotDivisibleError(*found)
    if found[0].axis == axis:
        return _joined(found).on(axis, [size for one in found for size in one.blocks])
    if len({one.blocks for one in found}) > 1:
        raise NotDivisibleError(*found)
    return _joined(found)


def piece_sizes(node: Any) -> list[int]:
    """Return the sizes of the pieces into which a node cuts what it reads."""
    axis = arguments_of(node)["dim"] % len(shape_of_node(node.args[0]))
    return [int(one.shape[axis]) for one in node.meta["val"]]


def _pieces(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard = _first(node, at)
    if arguments_of(node)["dim"] % len(shape_of_node(node.args[0])) == shard.axis:
        shard.pieces(piece_sizes(node))  # each ``getitem`` has its own
    return shard


def _getitem(node: Any, at: Mapping[Any, Placement]) -> Placement:
    source, number = node.args
    shard = at[source]
    if shard is None:
        return None
    name = name_of(source)
    if name in PIECES and arguments_of(source)["dim"] % len(shape_of_node(source.args[0])) == shard.axis:
        return shard.pieces(piece_sizes(source))[number]
    return shard


def _cut(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard, (start, size) = _first(node, at), cut_of(node)
    if axis_of(node) != shard.axis or size == shard.size:
        return shard
    before, behind = start, shard.size - start - size
    sizes = [one for one in (before, size, behind) if one]
    return shard.pieces(sizes)[1 if before else 0]


def axis_of(node: Any) -> int:
    """Return the axis along which a node cuts, counted from 0."""
    return int(arguments_of(node)["dim"] % len(shape_of_node(node.args[0])))


def cut_of(node: Any) -> tuple[int, int]:
    """Return the first place that a slice takes, and how many it takes; one with a step takes none evenly."""
    given, whole = arguments_of(node), shape_of_node(node.args[0])[axis_of(node)]
    start = int(given.get("start") or 0)
    return max(start + whole, 0) if start < 0 else min(start, whole), shape_of_node(node)[axis_of(node)]


def _selected(node: Any, at: Mapping[Any, Placement]) -> Placement:
    shard, axis = _first(node, at), axis_of(node)
    if axis == shard.axis:
        raise NotDivisibleError(shard, pieces=(1,) * shard.size if len(shard.blocks) == 1 else ())
    return shard.on(shard.axis - (axis < shard.axis))


def _attention(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Each rank has some heads of queries, keys and values, which are the third axis from the last."""
    factors = list(node.args[:3])
    found = [shard for one in factors if (shard := at.get(one)) is not None]
    wrong = [one for one in found if one.axis != len(shape_of_node(node)) - 3 or len(one.blocks) > 1]
    if wrong:
        raise NotDivisibleError(*wrong)
    mask = arguments_of(node).get("attn_mask")
    if len(found) < 3:
        raise NotDivisibleError(*found)
    if mask is not None and (shard := at.get(mask)) is not None:
        if shard.axis != len(shape_of_node(mask)) - 3:
            raise NotDivisibleError(shard, *found)
        found.append(shard)
    return _joined(found)


def _product(node: Any, at: Mapping[Any, Placement]) -> Placement:
    """Products of matrices, a pair for each place of the other axes, along one of which they are divided."""
    factors = node.args[:2] if name_of(node) != "baddbmm" else node.args[1:3]
    rank = len(shape_of_node(node))
    shards = [at.get(one) for one in factors]
    found = [one for one in shards if one is not None]
    axes = [one.axis + rank - len(shape_of_node(factor)) for factor, one in zip(factors, shards, strict=True) if one]
    if len(found) < 2 or len(set(axes)) > 1 or axes[0] >= rank - 2 or found[0].blocks != found[1].blocks:
        raise NotDivisibleError(*found)
    if name_of(node) == "baddbmm":
        _broadcast(node, node.args[:1], at) if at.get(node.args[0]) else None
    return _joined(found).on(axes[0])


_RULES: Mapping[str, Callable[[Any, Mapping[Any, Placement]], Placement]] = {
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(_OVER_AXIS, _over_axis),
    **dict.fromkeys(_ROW_NORMS, _row_norm),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("transpose", "t", "permute", "movedim", "swapaxes", "swapdims"), _permuted),
    **dict.fromkeys(PIECES, _pieces),
    **dict.fromkeys(CUTS, _cut),
    **dict.fromkeys(("select", "unbind"), _selected),
    **dict.fromkeys(("matmul", "bmm", "baddbmm"), _product),
    "_assert_tensor_metadata": lambda node, at: None,  # noqa: ARG005
    "unsqueeze": _unsqueezed,
    "squeeze": _view,
    "expand": _expanded,
    "cat": _cat,
    "getitem": _getitem,
    _ATTENTION: _attention,
}
