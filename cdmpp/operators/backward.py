"""Calls of autograd for the gradient of a framework operator, as operators again."""

from __future__ import annotations

from typing import NamedTuple

from cdmpp.operators.attention import BACKWARD
from cdmpp.operators.operator import ATTENTION, FILTER_GRADIENT, IMAGE_GRADIENT, EagerOperator


class Gradient(NamedTuple):
    """This is a call of the backward pass of one operator."""

    operator: EagerOperator
    of: str
    """The tensor whose gradient it gives: ``inputs``, ``first`` or ``second`` (input), ``weight``; empty: none."""
    is_always: bool = False
    """True if a library makes it even where nothing learns from it."""
    reads_saved: bool = True
    """False if it reads the gradient of the result alone, and what autograd saved is let go before it runs."""
    held_bytes: int = 0
    """Bytes of other tensors that are there while it runs: those that neither it nor what it reads wrote."""


def backward_of(operator: EagerOperator) -> tuple[Gradient, ...]:
    """List calls of the backward pass: of a product two, one a factor, of others one that moves as much.

    A sum over a bias's gradient counts as a ``mean`` of its columns. Libraries have kernels of their own for the
    gradients of a convolution's image and filter, of as many operations. Batch norms and fused attention run one kernel
    for all of their gradients.
    """
    dtype = operator.dtype
    if operator.reads and operator.name == "copy":
        return (Gradient(EagerOperator("copy", operator.sizes, operator.reads[0], reads=(dtype,)), "inputs"),)
    if operator.name == "linear":
        rows, inner, cols = (operator[name] for name in ("rows", "inner", "cols"))
        of_input = EagerOperator("linear", {"rows": rows, "inner": cols, "cols": inner, "bias": 0}, dtype)
        of_weight = EagerOperator("linear", {"rows": cols, "inner": rows, "cols": inner, "bias": 0}, dtype)
        of_bias = EagerOperator("mean", {"rows": cols, "cols": rows}, operator.result_dtype)
        both = (Gradient(of_input, "inputs"), Gradient(of_weight, "weight"))
        return (*both, Gradient(of_bias, "weight", reads_saved=False)) if operator["bias"] else both
    if operator.name == "bmm":
        batch, rows, inner, cols = (operator[name] for name in ("batch", "rows", "inner", "cols"))
        of_first = {"batch": batch, "rows": rows, "inner": cols, "cols": inner, "transposed": 1}
        of_second = {"batch": batch, "rows": inner, "inner": rows, "cols": cols}
        return (
            Gradient(EagerOperator("bmm", of_first, dtype), "first"),
            Gradient(EagerOperator("bmm", of_second, dtype), "second"),
        )
    if operator.name == "conv2d":
        of_image, of_filter = (EagerOperator(name, operator.sizes, dtype) for name in (IMAGE_GRADIENT, FILTER_GRADIENT))
        return Gradient(of_image, "inputs"), Gradient(of_filter, "weight")
    if operator.name == "softmax":
        return Gradient(EagerOperator("mul", operator.sizes, dtype), ""), Gradient(operator, "inputs")
    if operator.name == "batch_norm_train":
        return (Gradient(EagerOperator("batch_norm_gradient", operator.sizes, dtype), "inputs"),)
    if operator.name == "batch_norm":  # of a frozen one: sums over gradient and input, then both once more
        summed, scaled = (EagerOperator(name, operator.sizes, dtype) for name in ("mean", "mul"))
        return Gradient(summed, "weight"), Gradient(scaled, "inputs")
    if operator.kind.family == ATTENTION:
        return (Gradient(EagerOperator(operator.name + BACKWARD, operator.sizes, dtype), "inputs"),)
    if operator.name == "mean":
        copied = EagerOperator("copy", {"rows": operator["rows"], "cols": operator["cols"]}, dtype)
        return (Gradient(copied, "inputs"),)
    return (Gradient(operator, "weight" if operator.name == "embedding" else "inputs"),)


def accumulation_of(elements: int, dtype: str) -> EagerOperator:
    """Add the gradients of a value that two read, or that of a weight to the one that it has."""
    return EagerOperator.flat("add", elements, dtype)


def table_gradient(elements: int, dtype: str) -> EagerOperator:
    """Write the gradient of a table of vectors, of which most are zero."""
    return EagerOperator.flat("copy", elements, dtype)
