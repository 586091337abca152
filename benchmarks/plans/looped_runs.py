"""Measure steps of two ranks under schedules with several stages a rank.

python -m benchmarks.plans.looped_runs [--steps 8]     # writes tests/fixtures/looped_runs.json

Each rank is a process on a core of its own with one thread, over gloo on this machine. A layer's passes are timed by
themselves, on both cores at the same time: forward pass, whole backward pass, and gradients of weights alone. So are
messages, and what a step does once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from benchmarks.gloo_rank import begin

FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "looped_runs.json"
RANKS, LAYERS, WIDTH, EXAMPLES = 2, 8, 768, 128
CASES = tuple(
    (name, count, many)
    for many in (4, 8)
    for name, count in (
        ("1f1b", 1), ("interleaved1f1b", 2), ("interleavedzerobubble", 1), ("interleavedzerobubble", 2),
        ("zbvzerobubble", 2), ("dualpipev", 2),
    )
)  # fmt: skip
"""Schedule, stages of a rank, micro-batches."""
_SETTLE = 2


def layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def loss_of(output: torch.Tensor, _: Any = None) -> torch.Tensor:
    return output.square().mean()


def median_s(run: Callable[[], Any], repeats: int = 15) -> float:
    found = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin_s)
    return statistics.median(found[_SETTLE:])


def timed_layer(is_first: bool) -> dict[str, float]:
    """Medians of the passes of a layer; gradients are added to those of an earlier micro-batch."""
    module, x = layer(), torch.randn(EXAMPLES, WIDTH, requires_grad=not is_first)
    parameters, back = list(module.parameters()), torch.randn(EXAMPLES, WIDTH)
    found: dict[str, list[float]] = {"forward_s": [], "backward_s": [], "weights_s": []}
    for _ in range(16):
        begin_s = time.perf_counter()
        y = module(x)
        found["forward_s"].append(time.perf_counter() - begin_s)
        begin_s = time.perf_counter()
        y.backward(back)
        found["backward_s"].append(time.perf_counter() - begin_s)
        y = module(x)
        if is_first:
            found["weights_s"].append(found["backward_s"][-1])
            continue
        torch.autograd.grad(y, x, back, retain_graph=True)
        begin_s = time.perf_counter()
        weights = torch.autograd.grad(y, parameters[2:], back, retain_graph=True)
        hidden = torch.autograd.grad(y, [x, *parameters[:2]], back, retain_graph=True)
        both_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        torch.autograd.grad(y, x, back)
        without_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        for one, more in zip(parameters, (*hidden[1:], *weights), strict=True):
            one.grad += more
        added_s = time.perf_counter() - begin_s
        found["weights_s"].append(max(both_s - without_s, 0.0) + added_s)
    return {name: statistics.median(own[_SETTLE:]) for name, own in found.items()}


def timed_message(rank: int, size: int) -> float:
    tensor = torch.zeros(size // 4)

    def run() -> None:
        for turn in (0, 1):
            dist.send(tensor, 1 - rank) if rank == turn else dist.recv(tensor, 1 - rank)

    return median_s(run, 40) / 2


def timed_once(stages: list[nn.Sequential], many: int) -> float:
    """Return the seconds of an update, of dividing gradients by the micro-batches, and of setting them to nothing."""
    parameters = [one for stage in stages for one in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    grads = [torch.randn_like(one) for one in parameters]

    def run() -> None:
        for one, grad in zip(parameters, grads, strict=True):
            one.grad = grad
            one.grad.div_(many)
        optimizer.step()
        optimizer.zero_grad()

    return median_s(run)


def step_of(name: str, count: int, many: int, rank: int) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import Schedule1F1B, get_schedule_class

    every, each = RANKS * count, LAYERS // (RANKS * count)
    own = [rank, every - 1 - rank] if name in ("zbvzerobubble", "dualpipev") else list(range(rank, every, RANKS))
    torch.manual_seed(0)
    modules = [nn.Sequential(*(layer() for _ in range(each))) for _ in own]
    stages = [PipelineStage(m, one, every, torch.device("cpu")) for m, one in zip(modules, own, strict=True)]
    kind = get_schedule_class(name)
    schedule = kind(stages[0] if kind is Schedule1F1B else stages, many, loss_fn=loss_of)
    optimizer = torch.optim.SGD([one for m in modules for one in m.parameters()], lr=1e-4, momentum=0.9)
    x = torch.randn(EXAMPLES * many, WIDTH)
    given, target = ((x,) if 0 in own else ()), ({"target": x} if every - 1 in own else {})

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*given, **target, return_outputs=False)
        optimizer.step()

    return step


def _rank(rank: int, port: int, steps: int, folder: str) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    begin(rank, RANKS, port)
    dist.barrier()
    sizes = (4096, 4 * EXAMPLES * WIDTH)
    told: dict[str, Any] = {
        "first": timed_layer(is_first=True),
        "other": timed_layer(is_first=False),
        "once_s": timed_once([layer() for _ in range(LAYERS // RANKS)], 4),
        "messages_s": [[size, timed_message(rank, size)] for size in sizes],
        "steps_s": [],
    }
    for name, count, many in CASES:
        step = step_of(name, count, many, rank)
        found = []
        for number in range(_SETTLE + steps):
            dist.barrier() if number <= _SETTLE else None
            begin_s = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin_s)
        told["steps_s"].append(found[_SETTLE:])
        dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def measured(steps: int) -> list[dict[str, Any]]:
    """Both ranks measured this."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (29477, steps, folder), nprocs=RANKS)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of a case that count")
    FILE.write_text(json.dumps({"torch": torch.__version__, "ranks": measured(parser.parse_args().steps)}))


if __name__ == "__main__":
    main()
