"""Calculon's own question, asked of both: GPT-3 175B on 512 GPUs, from the same seconds and bytes of a block."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.peers.blocks import SameBlocks, links_of
from benchmarks.peers.calculon import Calculon, execution
from benchmarks.peers.networks import BLOCKS, HEADS
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.stage_costs import SENDS, SPLIT

RANKS, BATCH, SAMPLE = 512, 512, 100
TIMES = 12
"""Multiples of the batch that are asked together."""
MEMORY_BYTES = 80 * 2**30
PER_NODE = 8
REPLICAS, DIVISIONS = ("data", "zero1"), ("tensor", "pipeline", "tensor+pipeline")
STRATEGIES = (*REPLICAS, *DIVISIONS, *(f"{one}+{other}" for one in REPLICAS for other in DIVISIONS))
ORDERS = (
    SCHEDULES["1f1b"](),
    *(LOOPED["interleaved1f1b"](count) for count in range(2, BLOCKS // 2 + 1) if BLOCKS % count == 0),
)


@dataclass(frozen=True)
class Answer:
    """One side's answer to the question."""

    judge: str
    plans: int
    fit: int
    cpu_s: float
    best: str
    theirs_s: float
    """Seconds of a step of its best plan by Calculon; NaN where Calculon says that it does not fit."""


@dataclass(frozen=True)
class Pair:
    """One plan by both; parts of a step have names of ``PARTS``."""

    ours: Mapping[str, float]
    theirs: Mapping[str, float]
    group: tuple[bool, bool, bool]
    """It says in three flags if the plan recomputes, shards the optimizer, and interleaves stages."""


PARTS = ("compute", "update", "bubble", "tensor parallel", "stages", "replicas", "step", "memory")


def question(calculon: Calculon, memory_limit_bytes: float | None = MEMORY_BYTES) -> Question:
    """Ask for the best plan; a new source knows nothing yet but what blocks take."""
    return Question(
        SameBlocks(calculon, BLOCKS, HEADS), lambda ranks: links_of(calculon, ranks, PER_NODE), RANKS, BATCH,
        STRATEGIES, memory_limit_bytes, schedules=ORDERS, is_torch=False,
    )  # fmt: skip


def answers(calculon: Calculon) -> tuple[list[Answer], Judged]:
    """Let both answer: Calculon all plans without offloading, overlap and shared sequences, ours those it has."""
    start_s = time.process_time()
    judged = question(calculon).judged()
    first_s = time.process_time() - start_s
    start_s = time.process_time()
    judged = question(calculon).judged()
    known_s = time.process_time() - start_s
    order = judged.order()
    best = _execution(judged, int(order[0]), overlap=False)
    (evaluation,) = calculon.evaluations([best])
    can_be = int((~np.isnan(judged.costs.step_s)).sum())
    found = [
        Answer(name, can_be, len(order), seconds, _words(best), evaluation.step_s)
        for name, seconds in (("ours, op by op, blocks read first", first_s), ("ours, op by op, blocks known", known_s))
    ]
    first = [_execution(judged, int(row), overlap=False) for row in order[:SAMPLE]]
    start_s = time.process_time()
    again = calculon.evaluations(first)
    cpu_s = known_s + time.process_time() - start_s
    fitting = [place for place, one in enumerate(again) if one.step_s == one.step_s]
    place = min(fitting, key=lambda one: again[one].step_s)
    name = f"ours, op by op, its first {SAMPLE} plans by Calculon"
    found.append(Answer(name, can_be, len(order), cpu_s, _words(first[place]), again[place].step_s))
    start_s = time.process_time()
    many = [one.judged() for one in question(calculon).at_batches([BATCH * (1 + turn) for turn in range(TIMES)])]
    cpu_s, can_be = time.process_time() - start_s, sum(int((~np.isnan(one.costs.step_s)).sum()) for one in many)
    name = f"ours, op by op, blocks known, {TIMES} global batches"
    found.append(Answer(name, can_be, sum(int(one.fits.sum()) for one in many), cpu_s, "–", float("nan")))
    listed = _listed(calculon)
    start_s = time.process_time()
    theirs = calculon.evaluations(listed)
    cpu_s = time.process_time() - start_s
    for name, own in (
        ("Calculon, all", range(len(listed))),
        ("Calculon, kinds that op by op has", [i for i, one in enumerate(listed) if _is_ours(one)]),
    ):
        fitting = [i for i in own if theirs[i].step_s == theirs[i].step_s]
        first = min(fitting, key=lambda i: theirs[i].step_s)
        share = len(own) / len(listed)
        found.append(Answer(name, len(own), len(fitting), cpu_s * share, _words(listed[first]), theirs[first].step_s))
    return found, judged


def pairs(calculon: Calculon, judged: Judged) -> list[Pair]:
    """Compare plans drawn from all that can be, whatever memory they need; replicas overlap with both."""
    costs, plans, found = judged.costs, judged.plans, list[Pair]()
    rows = np.flatnonzero(
        ~np.isnan(costs.step_s) & (plans.degree("pp") > 1) & (plans.degree("tp") <= PER_NODE)
    ).tolist()
    drawn = sorted(random.Random(0).sample(rows, SAMPLE))
    theirs = calculon.evaluations([_execution(judged, row, overlap=True) for row in drawn], has_any_memory=True)
    for row, other in zip(drawn, theirs, strict=True):
        tensor, sends = (float(costs.communication_s[part][row]) for part in (SPLIT, SENDS))
        ours = (
            costs.compute_s[row], costs.update_s[row], costs.bubble_s[row], tensor, sends,
            costs.exposed_s[row] - tensor - sends, costs.step_s[row], costs.memory_bytes[row],
        )  # fmt: skip
        if other.step_s != other.step_s:
            continue
        schedule = plans.schedules[int(plans.schedule[row])]
        shards = plans.combinations[int(plans.combination[row])].strategy.name == "zero"
        group = bool(plans.recompute[row]), shards, schedule.stages_per_rank > 1
        found.append(Pair(dict(zip(PARTS, map(float, ours), strict=True)), other.parts(PARTS), group))
    return found


def _execution(judged: Judged, row: int, overlap: bool) -> dict[str, Any]:
    """A plan of ours in Calculon's words."""
    plans = judged.plans
    degrees, schedule = plans.degrees_of(row), plans.schedules[int(plans.schedule[row])]
    shards = plans.combinations[int(plans.combination[row])].strategy.name == "zero" and degrees.dp_replicate > 1
    return _plan(
        degrees.tp, degrees.pp, schedule.stages_per_rank if degrees.pp > 1 else 1, int(plans.micro_batch[row]),
        "full" if plans.recompute[row] else "none", shards, overlap and degrees.dp_replicate > 1,
    )  # fmt: skip


def _plan(
    tp: int, pp: int, count: int, micro_batch: int, recompute: str, shards: bool, overlap: bool = False
) -> dict[str, Any]:
    """Operators are divided inside a node where its devices suffice; stages and replicas stand in other nodes."""
    found = execution(RANKS, pp, BATCH, micro_batch, False, shards) | {
        "tensor_par": tp, "data_par": RANKS // tp // pp, "data_par_net": int(tp * pp < RANKS),
        "tensor_par_net": int(tp > PER_NODE or PER_NODE % tp > 0), "datatype": "float16", "fused_activation": True,
        "activation_recompute": recompute, "pipeline_interleaving": count, "data_par_overlap": overlap,
    }  # fmt: skip
    return found


def _listed(calculon: Calculon) -> list[dict[str, Any]]:
    """Its own list without offloading, overlap and sharing sequences: each once, on the networks of ``_plan``."""
    names = ("tensor_par", "pipeline_par", "pipeline_interleaving", "microbatch_size", "activation_recompute",
             "optimizer_sharding")  # fmt: skip
    fixed = {"tensor_par_comm_type": "ar", "tensor_par_overlap": "none", "data_par_overlap": False,
             "weight_offload": False, "activations_offload": False, "optimizer_offload": False}  # fmt: skip
    return [_plan(*values) for values in calculon.distinct(RANKS, BATCH, names, fixed)]


def _is_ours(one: Mapping[str, Any]) -> bool:
    return one["activation_recompute"] != "attn_only"


def _words(one: Mapping[str, Any]) -> str:
    shards = ", ZeRO-1" if one["optimizer_sharding"] else ""
    return (
        f"tp {one['tensor_par']}, pp {one['pipeline_par']} x {one['pipeline_interleaving']}, dp {one['data_par']}, "
        f"micro-batch {one['microbatch_size']}, recompute {one['activation_recompute']}{shards}"
    )


def median_ratio(found: Sequence[Pair], part: str) -> tuple[float, float, float]:
    """Return ours by theirs of a part: the median, and the ends of the middle 80 %; NaN where theirs has none."""
    ratios = [one.ours[part] / one.theirs[part] for one in found if one.theirs[part] > 0]
    if not ratios:
        return (float("nan"),) * 3
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist()
    return middle, low, high
