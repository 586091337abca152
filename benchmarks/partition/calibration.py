"""Runs of the engine whose layers only let time pass: what it adds to each pass, update and message.

No judged run is among them. A layer spins for a known time, so that a stage that waits for its neighbour stands as idle
as in a pipeline, and is woken as late.
"""

from __future__ import annotations

import time
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from cdmpp.partition import train
from cdmpp.partition.processes.record import KINDS
from cdmpp.synchrony.processes.place import WorkerPlace

FORWARD_S, BACKWARD_S = 1e-3, 2e-3
"""Seconds of the passes of a layer."""
SIZES = (32 << 10, 256 << 10)
"""Bytes of a message."""
STEPS = 120
RUNS: dict[str, tuple[str, int, int]] = {
    "alone": ("sequential", 1, 1),
    "alone by four": ("sequential", 1, 4),
    "in turns": ("sequential", 2, 4),
    "in a stream": ("pipedream", 2, 1),
    "gpipe": ("gpipe", 2, 4),
    "1f1b": ("1f1b", 2, 4),
    "2bw": ("2bw", 2, 4),
    "delayed": ("delayed", 2, 1),
}
"""Schedule, stages and micro-batches of a step. The first four say what the engine adds; all others are predicted from
that, as a check."""


class _Spin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _spin(FORWARD_S)
        ctx.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        _spin(BACKWARD_S)
        return gradient.clone(), torch.zeros_like(*ctx.saved_tensors)


def _spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


class Spin(nn.Module):
    """A layer of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``x``, late."""
        return _Spin.apply(x, self.weight)  # type: ignore[no-untyped-call]


def spins(stages: int) -> nn.Sequential:
    """A layer for each stage."""
    return nn.Sequential(*(Spin() for _ in range(stages)))


@cache
def batch(size: int, micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples of one step, of which a micro-batch has ``size`` bytes."""
    return torch.zeros(micro_batches, size // 4), torch.zeros(micro_batches)


def examples(size: int, micro_batches: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same examples in each step."""
    del step
    return batch(size, micro_batches)


def first(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that reads one number of each example."""
    return (outputs[:, 0] - targets).sum()


def run(name: str, size: int) -> dict[str, Any]:
    """Train the spinning layers under one of ``RUNS``; mean seconds of a step, and of what stages did in it."""
    schedule, stages, micro_batches = RUNS[name]
    record = train(
        partial(spins, stages), list(range(1, stages)), schedule, partial(examples, size, micro_batches), first,
        partial(torch.optim.SGD, lr=0.1), STEPS, micro_batches,
        places=[WorkerPlace(core=stage) for stage in range(stages)],
    ).record  # fmt: skip
    return {
        "step_s": record.step_s, "forward_s": FORWARD_S, "backward_s": BACKWARD_S, "bytes": size,
        "micro_batches": micro_batches,
        "seconds": [{kind: record.mean_s(stage, kind) for kind in KINDS} for stage in range(stages)],
    }  # fmt: skip
