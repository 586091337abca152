"""Cut a small network into two stages and train it with two processes.

python examples/partition_run.py
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from cdmpp.partition import train


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def examples(step: int, count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and whether they lie inside a sphere: the same ones for the same step."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(step))
    return points, (points.norm(dim=1) < 4).long()


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    return examples(1_000_000, 1000)


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs.argmax(1) == targets).float().mean().item()


if __name__ == "__main__":
    optimizer = partial(torch.optim.SGD, lr=0.1)
    for schedule in ("1f1b", "delayed"):
        trained = train(
            network, [2], schedule, examples, nn.functional.cross_entropy, optimizer, steps=100, micro_batches=4,
            held_out=held_out, score=accuracy,
        )  # fmt: skip
        record = trained.record
        print(f"{schedule}: {1e3 * record.step_s:.1f} ms a step, held-out accuracy {record.held_out[-1].score:.1%}")
        for stage in record.stages:
            first, end = stage.layers
            print(
                f"  stage {stage.stage}, layers {first} to {end - 1}: {stage.stash_bytes:,} bytes kept of "
                f"{stage.live} micro-batches, gradients {stage.staleness} updates late"
            )
