"""The calls of attention that nobody fused, as torch itself makes them: its function runs on tensors without values."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

from cdmpp.operators.aten_layout import copy_of, dtype_of, matrix, shape_of, tensors_in
from cdmpp.operators.aten_traffic import moved, traffic_of
from cdmpp.operators.attention_rules import AttentionCall
from cdmpp.operators.operator import EagerOperator

Calls = tuple[tuple[EagerOperator, ...], frozenset[int]]
"""Operators, and places among them of those whose gradient runs nothing."""
_NAMES = {"mul.Scalar": "mul_scalar", "mul.Tensor": "mul", "add.Tensor": "add_broadcast", "_safe_softmax": "softmax"}
_FREE = ("empty", "empty_like", "new_empty", "empty_strided")
_LIKE_INPUT = ("_safe_softmax", "tril")
"""Kernels whose result is as what they are given; torch takes long to find that out."""
_LEARNING = ("mul.Scalar", "mul.Tensor", "bmm.default", "clone.default", "_to_copy.default", "_safe_softmax.default")
"""Kernels that a gradient goes through with a kernel of its own."""


def math_calls(call: AttentionCall) -> Calls:
    """List the calls of ``_scaled_dot_product_attention_math``.

    Halves are computed in float32, queries and keys are both scaled, keys and values of groups are repeated, and rows
    that see nothing become zeros, for which scores are read again.
    """
    return _known(*map(_form, call[:4]), call.dropout, call.causal, call.grouped, call.mask_trains)


_Form = tuple[tuple[int, ...], tuple[int, ...], Any] | None


def _form(tensor: Any) -> _Form:
    return None if tensor is None else (tuple(shape_of(tensor)), tuple(map(int, tensor.stride())), tensor.dtype)


@lru_cache(maxsize=256)
def _known(
    query: _Form, key: _Form, value: _Form, mask: _Form,
    dropout: float, causal: bool, grouped: bool, mask_trains: bool,
) -> Calls:  # fmt: skip
    import torch

    q, k, v, m = (
        None if one is None else torch.empty_strided(one[0], one[1], dtype=one[2], device="meta")
        for one in (query, key, value, mask)
    )
    with torch.no_grad(), _log()() as log:
        if m is not None and m.dtype == torch.bool:
            zero, lowest = (torch.scalar_tensor(one, dtype=q.dtype, device="meta") for one in (0.0, -math.inf))  # type: ignore[union-attr]
            m = torch.where(m, zero, lowest)
        torch.ops.aten._scaled_dot_product_attention_math(q, k, v, m, dropout, causal, None, enable_gqa=grouped)
    made, silent = list[EagerOperator](), set[int]()
    for place, (name, given, result) in enumerate(log.calls):
        found = _operators(name, given, result)
        learns = name in _LEARNING or (name == "add.Tensor" and mask_trains)
        if name == "_to_copy.default" and result.dtype != torch.float32 and place + 1 < len(log.calls):
            learns = False  # of the weights, which it returns too
        silent |= {*range(len(made) + int(learns), len(made) + len(found))}
        made += found
    return tuple(made), frozenset(silent)


def _operators(name: str, given: list[Any], result: Any) -> list[EagerOperator]:
    if name == "bmm.default":
        x, y = given
        (many, rows, inner), cols = shape_of(x), shape_of(y)[-1]
        across = int(y.stride()[-1] != 1 and y.stride()[-2] == 1)
        sizes = {"batch": many, "rows": rows, "inner": inner, "cols": cols, "transposed": across}
        return [EagerOperator("bmm", sizes, dtype_of(x))]
    if name == "_safe_softmax.default":  # then: which scores are -inf; which rows are so throughout; zeros for these
        rows, truths = result.numel() // result.shape[-1], result.numel()
        scores = traffic_of([result])
        return [
            matrix("softmax", result),
            moved(scores + (truths, truths), dtype_of(result)),
            moved(scores._replace(elements=truths + rows, bytes=truths + rows), dtype_of(result)),
            matrix("copy", result),
        ]
    if name == "clone.default":
        return [copy_of(given[0])]
    if (known := _NAMES.get(name) or _NAMES.get(name.partition(".")[0])) is not None:
        return [matrix(known, result)]
    dtype = dtype_of(result) if result.is_floating_point() else "float32"
    return [moved(traffic_of([*given, result]), dtype)]


@cache
def _log() -> Any:
    """A class of modes that list the kernels under them: name, tensors that they are given, result."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = list[tuple[str, list[Any], Any]]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.removeprefix("aten::")
            is_like = name in _LIKE_INPUT and not kwargs and args[0].is_contiguous()
            result = torch.empty_like(args[0]) if is_like else func(*args, **(kwargs or {}))
            if not func.is_view and name not in (*_FREE, "_unsafe_view"):
                label = f"{name}.{func._overloadname}"
                self.calls.append((label, [one for arg in args for one in tensors_in(arg)], tensors_in(result)[0]))
            return result

    return Log
