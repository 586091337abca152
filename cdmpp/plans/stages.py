"""Stage: a part of a model that a rank of a pipeline runs, cut out of what one rank would run by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdmpp.steps.step_graph import Gradient, RankGraph


@dataclass(frozen=True)
class Stage:
    """One stage runs these ops for one micro-batch, and its part of the update once a step."""

    rank: RankGraph
    """Its ops, gradients, modules and buffers."""
    places: tuple[int, ...]
    """Places that its ops have in the whole rank."""
    share: float = 1.0
    """Its share of all trained parameters, and so of the seconds of an update."""
    sent_bytes: tuple[int, ...] = ()
    """Bytes of each tensor that it sends to the next stage in the forward pass."""
    returned_bytes: tuple[int, ...] = ()
    """Bytes of each gradient that it sends to the stage before in the backward pass."""
    returned: tuple[int, ...] = ()
    """Places among its ops of those that make these gradients."""
    outputs: tuple[int, ...] = ()
    """Places among its ops of those whose results it hands on: to later stages, and the last one to the loss."""
    tied: tuple[str, ...] = ()
    """Names of parameters that other stages hold too: their gradients are summed over these stages once a step."""


def tied_groups(
    stages: Iterable[tuple[Sequence[Gradient], Sequence[str]]], parts: int
) -> list[tuple[str, tuple[int, ...], int]]:
    """List each tied parameter with the stages that hold it and the bytes of its gradient that a rank of them sums.

    Args:
        stages: gradients and names of tied parameters of each stage.
        parts: into which replicas divide each gradient before it is summed over stages.
    """
    found = dict[str, tuple[tuple[int, ...], int]]()
    for number, (gradients, tied) in enumerate(stages):
        for one in (one for one in gradients if one.name in tied):
            before, size = found.get(one.name, ((), 0))
            found[one.name] = (*before, number), max(size, -(-one.bytes // parts))
    return [(name, numbers, size) for name, (numbers, size) in found.items()]
