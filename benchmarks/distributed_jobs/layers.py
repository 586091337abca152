"""Layers of a network timed by themselves: no other rank, no exchange. ``python -m ... NETWORK BATCH`` prints JSON.

A layer is a module of the network's nested ``nn.Sequential``; its times are those between its neighbours' marks in
whole steps, so that caches are as in training. The loss is the last layer, without parameters.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.distributed_jobs.networks import make

STEPS, SETTLE = 20, 4
REPOSITORY = Path(__file__).parents[2]


def flat(model: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each layer."""
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            yield from flat(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def timed_layers(network: str, batch: int) -> dict[str, Any]:
    """Medians of the seconds of each layer, and of what a step takes once.

    ``accumulate_s`` is that of a backward pass which finds gradients of an earlier batch. ``step_s`` is the mean of
    whole steps, of two batches each.
    """
    model, x = make(network, batch)
    layers = list(flat(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    sizes: list[int] = []
    steps_s = list[float]()
    for number in range(SETTLE + STEPS):
        begin_s = begun_s = time.perf_counter()
        optimizer.zero_grad()
        once = {"zero_s": time.perf_counter() - begin_s}
        for phase in ("backward_s", "accumulate_s"):
            marks = _marks(layers, x, sizes)
            if number >= SETTLE:
                for name, seconds in marks["forward"].items():
                    found[name, "forward_s"].append(seconds)
                for name, seconds in marks["backward"].items():
                    found[name, phase].append(seconds)
        begin_s = time.perf_counter()
        optimizer.step()
        once["update_s"] = time.perf_counter() - begin_s
        if number >= SETTLE:
            steps_s.append(time.perf_counter() - begun_s)
            for name, seconds in once.items():
                found["", name].append(seconds)
    names = [*(name for name, _ in layers), "loss"]
    rows = [
        {
            "name": name,
            **{what: statistics.median(found[name, what]) for what in ("forward_s", "backward_s", "accumulate_s")},
            "parameters": [[list(one.shape), one.requires_grad] for one in _parameters(layers, place)],
            "output_bytes": sizes[place] if place < len(sizes) else 4,
        }
        for place, name in enumerate(names)
    ]
    once = {what: statistics.median(found["", what]) for what in ("zero_s", "update_s")}
    return {
        "network": network,
        "batch": batch,
        "torch": torch.__version__,
        "layers": rows,
        "step_s": statistics.mean(steps_s),
        **once,
    }


def _parameters(layers: Sequence[tuple[str, nn.Module]], place: int) -> list[nn.Parameter]:
    return list(layers[place][1].parameters()) if place < len(layers) else []


def _marks(layers: Sequence[tuple[str, nn.Module]], x: torch.Tensor, sizes: list[int]) -> dict[str, dict[str, float]]:
    """Seconds of each layer in one forward and one backward pass."""
    forward: dict[str, float] = {}
    ends: list[tuple[str, float]] = []
    before_s = time.perf_counter()
    sizes.clear()
    for name, layer in layers:
        x = layer(x)
        x.register_hook(lambda _, name=name: ends.append((name, time.perf_counter())))
        sizes.append(x.numel() * x.element_size())
        now_s = time.perf_counter()
        forward[name], before_s = now_s - before_s, now_s
    loss = x.square().mean()
    now_s = time.perf_counter()
    forward["loss"], before_s = now_s - before_s, now_s
    loss.backward()
    ended_s, backward, above = time.perf_counter(), {}, "loss"
    for name, mark_s in ends:  # the gradient of a layer's output is there: the layer above has ended
        backward[above], before_s, above = mark_s - before_s, mark_s, name
    backward[above] = ended_s - before_s
    return {"forward": forward, "backward": backward}


def measured(network: str, batch: int, cores: Sequence[int]) -> list[dict[str, Any]]:
    """The tables of one process a core, all at the same time."""
    words = [sys.executable, "-m", __spec__.name, network, str(batch)]
    started = [
        subprocess.Popen(["taskset", "-c", str(core), *words], cwd=REPOSITORY, stdout=subprocess.PIPE) for core in cores
    ]
    return [json.loads(one.communicate(timeout=120)[0]) for one in started]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(timed_layers(sys.argv[1], int(sys.argv[2]))))
