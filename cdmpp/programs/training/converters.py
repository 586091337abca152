"""Converters: operators of backward passes that TVM's importer lacks or gets wrong, as Relax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdmpp.errors import CdmppError


def converters() -> Mapping[str, Callable[[Any, Any], Any]]:
    """Return what emits each torch operator, by name; it takes the torch node and TVM's importer, and gives a value."""
    return {
        "avg_pool2d_backward.default": _average_pool_backward,
        "embedding_dense_backward.default": _embedding_backward,
        "index_put.default": _index_put,
        "max_pool2d_with_indices_backward.default": _max_pool_backward,
    }


def _max_pool_backward(node: Any, importer: Any) -> Any:
    from tvm import relax

    gradient, data = (importer.env[argument] for argument in node.args[:2])
    window, stride, padding, dilation, ceil = node.args[2:7]
    return importer.block_builder.emit(
        relax.op.grad.max_pool2d_backward(
            gradient, data, list(window), list(stride or window), _both_sides(padding), list(dilation), bool(ceil)
        )
    )


def _average_pool_backward(node: Any, importer: Any) -> Any:
    from tvm import relax

    gradient, data = (importer.env[argument] for argument in node.args[:2])
    window, stride, padding = node.args[2:5]
    ceil = node.args[5] if len(node.args) > 5 else False
    counts_padding = node.args[6] if len(node.args) > 6 else True
    return importer.block_builder.emit(
        relax.op.grad.avg_pool2d_backward(
            gradient, data, list(window), list(stride or window), _both_sides(padding), [1, 1], bool(ceil),
            bool(counts_padding),
        )
    )  # fmt: skip


def _both_sides(padding: Sequence[int]) -> list[int]:
    first, second = (*padding, *padding)[:2]
    return [first, second, first, second]


def _embedding_backward(node: Any, importer: Any) -> Any:
    from tvm import relax

    gradient, places = (importer.env[argument] for argument in node.args[:2])
    shape = [node.args[2], int(gradient.ty.shape[-1])]
    table = importer.block_builder.emit(relax.op.zeros(shape, str(gradient.ty.dtype)))
    return _scattered(importer, gradient, places, table)


def _index_put(node: Any, importer: Any) -> Any:
    """The gradient of reading rows by number: ``accumulate`` along the first axis."""
    from tvm import relax

    places = [importer.env[place] for place in node.args[1] if place is not None]
    adds = len(node.args) > 3 and node.args[3] is True
    if len(places) != 1 or len(node.args[1]) != 1 or not adds:
        raise CdmppError("only index_put(accumulate=True) of whole rows, the gradient of x[rows], is covered")
    data = importer.env[node.args[0]]
    added = _scattered(importer, importer.env[node.args[2]], places[0], data)
    return importer.block_builder.emit(relax.op.add(data, added))


def _scattered(importer: Any, gradient: Any, places: Any, table: Any) -> Any:
    """Rows of ``gradient`` summed at their ``places`` in zeros of the shape of ``table``."""
    from tvm import relax

    emit, rest = importer.block_builder.emit, [int(extent) for extent in table.ty.shape.values[1:]]
    rows = emit(relax.op.reshape(gradient, [-1, *rest]))
    numbers = emit(relax.op.reshape(places, [-1]))
    return emit(relax.op.grad.take_backward(rows, table, numbers, axis=0))
