"""Probe: what collectives of growing size take on the links of a job, what operators lose next to one. Needs torch."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cdmpp.platform.files import write_text
from cdmpp.steps.contention import MOST_SHARE
from cdmpp.trace.folder import PROBE

SIZES = tuple(4**power for power in range(6, 13))
"""4 KiB to 16 MiB."""
_APART_S = 1e-3
"""Seconds from the arrival of one rank to that of the next: ranks of a job never arrive together, and gloo's gathers
move up to twice as many bytes one after the other where one rank waits for the next."""
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds that no rank leaves before all are there."""
_ROUNDS, _ROUND_S = 3, 0.3
"""Rounds in which operators are timed by themselves and next to an exchange, and the seconds of each."""


def probe(
    folder: Path | str, kinds: Sequence[str] = ("all_reduce",), budget_s: float = 4.0,
    group: dist.ProcessGroup | None = None,
) -> None:  # fmt: skip
    """Time collectives and write ``folder/probe.json``; every rank calls it, between steps.

    They are those of all ranks, or of ``group``, one of equal groups that act at once. Sizes grow from 4 KiB to 16 MiB
    until ``budget_s`` seconds a kind are spent; of each, the median over repeats of the slowest rank. On CPUs a product
    of matrices runs by itself and next to the first kind: what it loses is the share of a processor that exchanges
    take.
    """
    rows = [row for kind in kinds for row in _curve(kind, budget_s, group)]
    share = _lost_beside(rows, group) if rows and dist.get_backend() != "nccl" else 0.0
    if dist.get_rank() == 0:
        ranks = dist.get_world_size(group)
        table = {"ranks": ranks, "backend": dist.get_backend(), "rows": rows, "processor_share": share}
        write_text(Path(folder) / PROBE, json.dumps(table))


def _curve(kind: str, budget_s: float, group: dist.ProcessGroup | None) -> list[dict]:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    spent_s, rows = 0.0, []
    for size in SIZES:
        times: list[float] = []
        while len(times) < 3 or (len(times) < 15 and sum(times) < budget_s / 20):
            times.append(_slowest(_once(kind, size, device, group, len(times)), device))
        times = times[1:]  # the first opens connections
        rows.append({"kind": kind, "bytes": size, "latency_s": statistics.median(times)})
        spent_s += sum(times)
        if spent_s > budget_s:
            break
    return rows


def _lost_beside(rows: Sequence[dict], group: dist.ProcessGroup | None) -> float:
    """Share of its speed that an operator loses next to an exchange, mean over ranks, median over rounds.

    Where only messages were timed, whose bytes go one way, an exchange whose bytes go both ways takes twice theirs.
    """
    kind = rows[0]["kind"]
    fits = [row["bytes"] for row in rows if row["kind"] == kind and row["latency_s"] <= 2 * _ROUND_S]
    size, x = max(fits, default=SIZES[0]), torch.ones(256, 256)
    lost = []
    for _ in range(_ROUNDS):
        dist.barrier()
        alone = _calls_a_second(x, lambda begin_s: time.perf_counter() - begin_s < _ROUND_S)
        dist.barrier()
        work = _started(kind, size, "cpu", group)
        waiting = threading.Thread(target=work.wait if work is not None else None)  # gloo's messages say no other way
        waiting.start()
        shared = _calls_a_second(x, lambda _: waiting.is_alive())  # noqa: B023 (called in this round only)
        waiting.join()
        lost.append(_mean(max(0.0, 1 - shared / alone)))
    return min(MOST_SHARE, statistics.median(lost) * (2 if kind == "send_recv" else 1))


def _calls_a_second(x: torch.Tensor, goes_on: Callable[[float], bool]) -> float:
    calls, begin_s = 0, time.perf_counter()
    while goes_on(begin_s) or not calls:
        x @ x
        calls += 1
    return calls / (time.perf_counter() - begin_s)


def _once(kind: str, size: int, device: str, group: dist.ProcessGroup | None, turn: int) -> float:
    """Seconds from the arrival of the last rank, which is another one at each ``turn``."""
    ranks = dist.get_world_size(group)
    late, last = (turn + dist.get_rank(group)) % ranks, ranks - 1
    dist.barrier()
    begin_s = time.perf_counter()
    if kind in _TOGETHER:
        time.sleep(_APART_S * late)
        begin_s += _APART_S * last
    if (work := _started(kind, size, device, group)) is not None:
        work.wait()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def _started(kind: str, size: int, device: str, group: dist.ProcessGroup | None) -> dist.Work | None:
    """None on the rank that is left over where an odd number of ranks send messages."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    count = size // 4
    whole, part = torch.zeros(count, device=device), torch.zeros(count // world, device=device)
    if kind == "all_reduce":
        return dist.all_reduce(whole, group=group, async_op=True)
    if kind == "all_gather":
        return dist.all_gather_into_tensor(whole[: len(part) * world], part, group=group, async_op=True)
    if kind == "reduce_scatter":
        return dist.reduce_scatter_tensor(part, whole[: len(part) * world], group=group, async_op=True)
    if kind == "broadcast":
        return dist.broadcast(whole, group=group, group_src=0, async_op=True)
    if kind == "send_recv":  # each even rank to the one after it, all at once
        if rank ^ 1 >= world:
            return None
        if rank % 2:
            return dist.irecv(whole, group=group, group_src=rank ^ 1)
        return dist.isend(whole, group=group, group_dst=rank ^ 1)
    raise ValueError(f"cannot probe {kind}: expected all_reduce, all_gather, reduce_scatter, broadcast or send_recv")


def _slowest(seconds: float, device: str) -> float:
    """The same on all ranks, so that they repeat equally often."""
    shared = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)


def _mean(value: float) -> float:
    shared = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(shared)
    return float(shared) / dist.get_world_size()
