"""Probe: what collectives of growing size take on the links of a job. Needs torch."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cdmpp.trace.folder import PROBE

SIZES = tuple(4**power for power in range(6, 13))
"""4 KiB to 16 MiB."""


def probe(folder: Path | str, kinds: Sequence[str] = ("all_reduce",), budget_s: float = 4.0) -> None:
    """Time collectives of all ranks and write ``folder/probe.json``; every rank calls it, between steps.

    Sizes grow from 4 KiB to 16 MiB until ``budget_s`` seconds a kind are spent; of each, the median over repeats of
    the slowest rank.
    """
    rows = [row for kind in kinds for row in _curve(kind, budget_s)]
    if dist.get_rank() == 0:
        told = {"ranks": dist.get_world_size(), "backend": dist.get_backend(), "rows": rows}
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / PROBE).write_text(json.dumps(told))


def _curve(kind: str, budget_s: float) -> list[dict]:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    spent_s, rows = 0.0, []
    for size in SIZES:
        times: list[float] = []
        busy_s: list[float] = []
        while len(times) < 3 or (len(times) < 15 and sum(times) < budget_s / 20):
            took_s, worked_s = _once(kind, size, device)
            busy_s.append(worked_s)
            times.append(_slowest(took_s, device))
        times = times[1:]  # the first opens connections
        row = {"kind": kind, "bytes": size, "latency_s": statistics.median(times)}
        rows.append(row if device == "cuda" else {**row, "processor_s": statistics.median(busy_s[1:])})
        spent_s += sum(times)
        if spent_s > budget_s:
            break
    return rows


def _once(kind: str, size: int, device: str) -> tuple[float, float]:
    """Seconds, and seconds of processors of this rank."""
    world = dist.get_world_size()
    count = size // 4
    whole, part = torch.zeros(count, device=device), torch.zeros(count // world, device=device)
    dist.barrier()
    begin_s, worked_s = time.perf_counter(), time.process_time()
    if kind == "all_reduce":
        dist.all_reduce(whole)
    elif kind == "all_gather":
        dist.all_gather_into_tensor(whole[: len(part) * world], part)
    elif kind == "reduce_scatter":
        dist.reduce_scatter_tensor(part, whole[: len(part) * world])
    else:
        raise ValueError(f"cannot probe {kind}: expected all_reduce, all_gather or reduce_scatter")
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin_s, time.process_time() - worked_s


def _slowest(seconds: float, device: str) -> float:
    """The same on all ranks, so that they repeat equally often."""
    shared = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
