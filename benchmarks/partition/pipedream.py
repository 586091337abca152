"""Cuts of the networks that PipeDream profiled, for 2 to 8 GPUs; and how much faster than data parallelism they are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.partition.profiles import Profile, profiles
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import InfeasiblePlanError
from cdmpp.partition.chain import Chain, Part
from cdmpp.partition.outcome import replayed
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.question import PartitionQuestion, answer
from cdmpp.partition.solve import solve
from cdmpp.plans.schedules import SCHEDULES

COUNTS = range(2, 9)
LINK = AlphaBeta(25e-6, 1 / 1.25e9)
"""10 Gbit/s, and 50 us for a message between two machines."""
MEMORY = 16e9
STATES = 1.0
"""SGD with momentum."""
ORDER = ("vgg16", "gnmt_large", "resnet50")
"""Speed-up over data parallelism on 16 GPUs at 10 Gbit/s, largest first, as the paper has it."""
FASTER = (1, 4)
"""How many times as fast as those of the profiles GPUs are taken to be."""
_COMMANDS = ["python -m benchmarks.partition pipedream --data FOLDER --publish"]
_SOURCE = (
    "Layer profiles of github.com/msr-fiddle/pipedream, commit 7db6a1c, MIT; the files do not name the GPU and the "
    "batch. No seed: nothing is drawn."
)


def tables(data: Path) -> list[dict[str, Any]]:
    """Cut the networks of the folder ``pipedream`` of ``data``."""
    found = profiles(data)
    return [_cuts(found), _over_data_parallel(found)]


def _cuts(found: dict[str, Profile]) -> dict[str, Any]:
    return {
        "title": "Cuts for 2 to 8 GPUs, with messages and memory",
        "note": (
            f"{_SOURCE} GPUs have {MEMORY / 1e9:g} GB and links of 10 Gbit/s; micro-batches follow each other without "
            "flushes, weights are stashed (schedule `pipedream`), states are those of SGD with momentum. Speed-up is "
            "that over one GPU without a limit of memory: of the slowest stage with exposed messages, and of the "
            "replay. `computing only` has neither messages nor limits of memory. `bound`: by how much the slowest "
            "stage may be above that of the best partition; 0.0 is a proof. `greedy` and `equal layers` are slowest "
            "stages over that of the planner, of cuts that use all GPUs; a star marks those that do not fit into "
            "memory. `again`: stages keep their inputs only, and run forward passes again."
        ),
        "commands": _COMMANDS,
        "columns": [
            "network", "GPUs", "stages", "speed-up", "by replay", "computing only", "bound, %", "greedy",
            "equal layers", "by", "again", "CPU s",
        ],
        "rows": [row for one in found.values() for count in COUNTS for row in _row(one, count)],
    }  # fmt: skip


def _row(profile: Profile, count: int) -> Iterator[list[str]]:
    begun, alone_s = time.process_time(), float(profile.seconds.sum())
    schedule = SCHEDULES["pipedream"]()
    free = solve(PartitionProblem(profile.graph, profile.devices(count, AlphaBeta(0, 0), math.inf), schedule))
    only = f"{alone_s / free.chain.slowest_s:.2f}"
    asked = PartitionQuestion(
        profile.graph, profile.devices(count, LINK, MEMORY), 1, 1, (schedule,), states=STATES, seconds=60.0
    )
    try:
        found = answer(asked).best
    except InfeasiblePlanError as error:
        missing = str(error).split(": ")[-1].split(" are missing")[0]
        yield [profile.name, str(count), "-", f"does not fit: {missing}", "-", only, "-", "-", "-", "-", "-", "-"]
        return
    partition = found.partition
    chain, slowest_s = partition.chain, partition.chain.slowest_s
    yield [
        profile.name, str(count), str(len(chain.parts)), f"{alone_s / slowest_s:.2f}",
        f"{alone_s / replayed(chain).step_s:.2f}", only, f"{100 * max(partition.gap, 0.0):.1f}",
        *(_over(one, slowest_s) for one in (partition.greedy, partition.equal_layers)),
        partition.method.split(" ")[0], "yes" if chain.problem.recompute else "no",
        f"{time.process_time() - begun:.1f}",
    ]  # fmt: skip


def _over(chain: Chain, slowest_s: float) -> str:
    return f"{chain.slowest_s / slowest_s:.2f}" + "*" * (not chain.fits)


def _over_data_parallel(found: dict[str, Profile]) -> dict[str, Any]:
    speeds: dict[int, dict[str, float]] = {faster: {} for faster in FASTER}
    rows, plans = list[list[str]](), dict[str, str]()
    for name in found:
        cells = [name]
        for count, faster in ((4, 1), (8, 1), *((16, one) for one in FASTER)):
            parts, speed = _replicated(found[name], count, faster)
            cells += [parts, f"{speed:.2f}"]
            if count == 16:
                speeds[faster][name], plans[name] = speed, plans.get(name) or parts
        rows.append(cells)
    orders = [sorted((name for name in own if name in ORDER), key=lambda name: -own[name]) for own in speeds.values()]
    told = "; ".join(
        f"GPUs {f'{faster} times as fast as' if faster > 1 else 'of'} the profile: {', '.join(order)}"
        for faster, order in zip(FASTER, orders, strict=True)
    )
    same = [tuple(order) == ORDER for order in orders]
    is_same = "in both" if all(same) else "in one of the two" if any(same) else "in neither"
    return {
        "title": "Stages with replicas, over data parallelism",
        "note": (
            "Several GPUs may share a stage, as in PipeDream; memory is no limit. Numbers of GPUs a stage, first to "
            "last, and how many times as fast as data parallelism on all GPUs the slowest stage is, by formula. Sums "
            "of gradients hide behind backward passes, for data parallelism too; all GPUs have one flat link of 10 "
            "Gbit/s. The paper (Narayanan and others, SOSP 2019), whose speed-ups are over data parallelism as well: "
            "on 16 GPUs in four servers joined by 10 Gbit/s VGG-16 gains most (its abstract says up to 5.3 times), "
            "with the plan 15-1; then GNMT-16 (`gnmt_large`), with one GPU a stage; and ResNet-50 nothing, which it "
            f"trains data-parallel, as the plan 16. Plans here: VGG-16 {plans['vgg16']}, ResNet-50 "
            f"{plans['resnet50']}. Largest gain first, {told}: the paper's order {is_same}. What carries the rest: how "
            "far a sum is from hidden depends on how fast the GPU is, which the files do not name, and the paper's own "
            "data parallelism and links inside servers are not in the model. On GPUs four times as fast VGG-16 gains "
            "nearly what the paper says, and GNMT-16 as much."
        ),
        "commands": _COMMANDS,
        "columns": [
            "network", "4 GPUs", "over DP", "8 GPUs", "over DP", "16 GPUs", "over DP", "16 GPUs, 4 times as fast",
            "over DP",
        ],
        "rows": rows,
    }  # fmt: skip


def _replicated(profile: Profile, count: int, faster: int) -> tuple[str, float]:
    devices = tuple(
        replace(one, forward_s=one.forward_s / faster, backward_s=one.backward_s / faster)
        for one in profile.devices(count, LINK, math.inf)
    )
    problem = PartitionProblem(profile.graph, devices, SCHEDULES["pipedream"](), states=STATES, replicas=True)
    chain = solve(problem).chain
    whole = Chain(problem, (Part(tuple(range(profile.graph.count)), 0, count),))
    return "-".join(str(one.replicas) for one in chain.parts), whole.slowest_s / chain.slowest_s
