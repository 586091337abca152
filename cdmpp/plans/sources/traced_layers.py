"""Layers of a network out of the trace of a job under DDP: what each block took, for plans that cut the model.

A trace tells neither where a model can be cut nor what its operators make: who knows the blocks says both, and gets a
table of layers for ``TableSource``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import COPY, LAUNCH, Op, RankGraph, StepGraph

_READERS = ("linear", "conv2d", "layer_norm", "batch_norm", "embedding")
"""Operators that read the parameters of one module."""
_BUCKETS = "reducer::"
"""Part of the names of the operators with which DDP copies gradients into its buckets and back."""


def traced_layers(graph: StepGraph, layers: Sequence[Layer], modules: Sequence[int]) -> list[Layer]:
    """Give blocks the times that they had in a trace: the mean over ranks.

    Args:
        graph: traced under DDP, one batch a step.
        layers: the blocks, with the bytes of parameters and outputs at the traced number of examples. Their modules run
            in the order in which they are defined.
        modules: how many modules of each block have parameters of their own.

    Raises:
        DataError: a trace that is not of this model.
    """
    if len(modules) != len(layers):
        raise DataError(f"{len(layers)} blocks, and numbers of modules of {len(modules)}: give one for each block")
    ranks = [_seconds(rank, layers, modules) for rank in contention_free(graph).ranks]
    forward_s, backward_s, update_s = (np.mean([one[i] for one in ranks], axis=0) for i in range(3))
    size = sum(one.parameter_bytes for one in layers)
    return [
        replace(one, forward_s=float(f), backward_s=float(b), update_s=float(update_s) * one.parameter_bytes / size)
        for one, f, b in zip(layers, forward_s, backward_s, strict=True)
    ]


def _seconds(rank: RankGraph, layers: Sequence[Layer], modules: Sequence[int]) -> tuple[Any, ...]:
    readers = [i for i, op in enumerate(rank.ops) if op.phase == "forward" and op.name.split("::")[-1] in _READERS]
    if len(readers) != sum(modules):
        raise DataError(
            f"{len(readers)} operators of the trace read parameters, the blocks have {sum(modules)} such modules"
        )
    firsts = [0, *(readers[number] for number in np.cumsum(modules)[:-1])]
    ends, place = list[int](), 0
    for one in layers:
        size, last = 0, 0
        while size < one.parameter_bytes and place < len(rank.gradients):
            size, last = size + rank.gradients[place].bytes, max(last, rank.gradients[place].ready_after)
            place += 1
        if size != one.parameter_bytes:
            raise DataError(f"gradients of {size} bytes in the trace where block {one.name} has {one.parameter_bytes}")
        ends.append(last)
    forward_s, backward_s, update_s = np.zeros(len(layers)), np.zeros(len(layers)), 0.0
    for number, op in enumerate(rank.ops):
        seconds = _taken_s(op)
        if op.kind == LAUNCH or op.kind == COPY or _BUCKETS in op.name:
            continue
        if op.phase == "update":
            update_s += seconds
        elif op.phase == "forward":
            forward_s[np.searchsorted(firsts, number, side="right") - 1] += seconds
        else:
            own = [i for i, end in enumerate(ends) if number <= end]
            backward_s[own[-1] if own else 0] += seconds
    return forward_s, backward_s, update_s


def _taken_s(op: Op) -> float:
    return op.duration_s + op.gap_s + op.delay_s
