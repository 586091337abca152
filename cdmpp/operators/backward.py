"""What autograd runs for the gradient of a library operator, as operators again."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.operators.operator import LibraryOperator

_WITH_WEIGHTS = ("linear", "conv2d", "layer_norm", "batch_norm", "embedding")


def backward_of(operator: LibraryOperator) -> tuple[LibraryOperator, ...]:
    """Operators of the backward pass: of a product two, one a factor, of others one that moves as much.

    A sum over a bias's gradient counts as a ``mean`` of its columns. Convolutions run twice as they are: libraries have
    kernels of their own for the gradients of image and filter, of as many operations.
    """
    dtype = operator.dtype
    if operator.name == "linear":
        rows, inner, cols = (operator[name] for name in ("rows", "inner", "cols"))
        of_input = LibraryOperator("linear", {"rows": rows, "inner": cols, "cols": inner, "bias": 0}, dtype)
        of_weight = LibraryOperator("linear", {"rows": cols, "inner": rows, "cols": inner, "bias": 0}, dtype)
        of_bias = LibraryOperator("mean", {"rows": cols, "cols": rows}, dtype)
        return (of_input, of_weight, of_bias) if operator["bias"] else (of_input, of_weight)
    if operator.name == "bmm":
        batch, rows, inner, cols = (operator[name] for name in ("batch", "rows", "inner", "cols"))
        of_first = {"batch": batch, "rows": rows, "inner": cols, "cols": inner, "transposed": 1}
        of_second = {"batch": batch, "rows": inner, "inner": rows, "cols": cols}
        return LibraryOperator("bmm", of_first, dtype), LibraryOperator("bmm", of_second, dtype)
    if operator.name == "conv2d":
        return operator, operator
    if operator.name == "softmax":
        return LibraryOperator("mul", operator.sizes, dtype), operator
    if operator.name == "mean":
        return (LibraryOperator("copy", {"rows": operator["rows"], "cols": operator["cols"]}, dtype),)
    return (operator,)


def accumulation_of(elements: int, dtype: str) -> LibraryOperator:
    """Adds the gradients of a value that two read, or that of a weight to the one that it has."""
    return LibraryOperator("add", {"rows": 1, "cols": max(1, elements)}, dtype)


def weight_gradients(operator: LibraryOperator, weight_bytes: Sequence[int]) -> tuple[LibraryOperator, ...]:
    """What the weights that an operator reads add to its backward pass: a sum each, a table written whole."""
    if operator.name not in _WITH_WEIGHTS:
        return ()
    elements = [size // operator.element_bytes for size in weight_bytes if size >= operator.element_bytes]
    sums = tuple(accumulation_of(count, operator.dtype) for count in elements)
    if operator.name != "embedding":
        return sums
    return (LibraryOperator("copy", {"rows": 1, "cols": max([1, *elements])}, operator.dtype), *sums)
