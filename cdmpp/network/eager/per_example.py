"""Operators that take each example by itself: what they give at another batch follows from what they gave at one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp.network.eager.without_values import told
from cdmpp.operators.aten import name_of_target
from cdmpp.operators.aten_convolution import CONVOLUTIONS

_TRAINS = 5
"""Place among the arguments of ``batch_norm`` that says whether it learns from the batch."""


def at_other_batch(
    target: Any, own: Sequence[Any], given: Sequence[Any], own_tensors: Sequence[Any], tensors: Sequence[Any],
    made: Sequence[Any],
) -> Any:  # fmt: skip
    """Return what a convolution, or a batch norm that does not learn, gives; None where this has to be asked of torch.

    Torch takes a millisecond to say it. Only of tensors that are contiguous, in and out: layouts do not depend on the
    first axis of these.

    Args:
        target: an operator of torch.
        own: its arguments at one batch, in a row; ``given``: those at the other.
        given: as there.
        own_tensors: those of ``own`` that are tensors, and so ``tensors`` of ``given``.
        tensors: as there.
        made: what it gave, all in a row.
    """
    import torch

    name = name_of_target(target)
    is_batch_norm = name == "batch_norm" and len(own) > _TRAINS and own[_TRAINS] is False
    if not (is_batch_norm or (name in CONVOLUTIONS and name != "convolution")) or len(made) != 1:
        return None
    if tuple(own) != tuple(given) or list(map(told, own_tensors[1:])) != list(map(told, tensors[1:])):
        return None
    before, now, found = own_tensors[0], tensors[0], made[0]
    if before.dtype != now.dtype or before.shape[1:] != now.shape[1:] or found.shape[0] != before.shape[0]:
        return None
    if not is_batch_norm and before.dim() != tensors[1].dim():  # one example, without an axis for it
        return None
    if before.dim() < 2 or not all(one.stride() == _contiguous(one.shape) for one in (before, now, found)):
        return None
    return torch.empty((now.shape[0], *found.shape[1:]), dtype=found.dtype, device="meta")


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, each = list[int](), 1
    for size in reversed(shape):
        strides.insert(0, each)
        each *= max(1, size)
    return tuple(strides)
