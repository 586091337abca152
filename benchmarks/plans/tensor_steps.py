"""Real steps of decoders under tensor and pipeline parallel plans, beside what their parts say.

``benchmarks.plans.tensor_runs`` measured them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.decoder_jobs import BATCH, CASES, TOKENS, WIDTH, WORDS, Case
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.platform.files import read_json
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.probed_topology import probed_topology
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Measured, RankGraph, StepGraph

FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "tensor_runs.json"
CORES = 2
_WHOLE = ("together_s", "alone_s")
APART = 0.05
"""Share by which two cases differ at least, so that their order counts."""


class Parts:
    """This was timed by itself; a collective, and the work of a host, is the same in all cases that have it."""

    def __init__(self, stored: Sequence[Mapping[str, Any]]) -> None:
        by_name = {case.name: case for case in CASES}
        self.cases = [(by_name[one["case"]], one) for one in stored]
        exchanges, hosts, computed = (dict[Any, list[float]]() for _ in range(3))
        for case, one in self.cases:
            for *_, axis, kind, size, seconds in one["exchanges"]:
                exchanges.setdefault(_key(case, axis, kind, size), []).append(seconds)
            for what, seconds in [*one["layers_s"].items(), *((name, one[name]) for name in _WHOLE)]:
                computed.setdefault((_divided(case), what), []).append(seconds)
            for what, seconds in one["host_s"].items():
                hosts.setdefault((_host(case), what), []).append(seconds)
        self.exchange_s, self.host_s, self.computed_s = (
            {key: statistics.median(found) for key, found in of.items()} for of in (exchanges, hosts, computed)
        )

    def step_s(self, case: Case, one: Mapping[str, Any]) -> float:
        """Seconds of a step; nothing is fitted to a step."""
        exchanges = [(name, phase, self.exchange_s[_key(case, *key)]) for name, phase, *key, _ in one["exchanges"]]
        host = {what: self.host_s[_host(case), what] if case.tp > 1 else 0.0 for what in ("passes", "update")}
        computed = {what: s for (of, what), s in self.computed_s.items() if of == _divided(case)}
        if case.schedule:
            return _piped_s(case, one["probe"], computed, exchanges, host)
        compute_s, shared = computed["together_s"], max(1.0, case.ranks / CORES)
        if shared > 1:  # between a core that others take while a rank waits, and one that nobody takes
            compute_s = (computed["alone_s"] + computed["together_s"]) / 2
        return compute_s + sum(seconds for *_, seconds in exchanges) + shared * sum(host.values())


def _key(case: Case, axis: str, kind: str, size: int) -> tuple[Any, ...]:
    """Equal for collectives that are the same, with as many processes at work."""
    return _busy(case), getattr(case, {"tp": "tp", "dp_shard": "shards", "dp_replicate": "replicas"}[axis]), kind, size


def _host(case: Case) -> tuple[Any, ...]:
    """Equal for cases whose host has as much to do for DTensors."""
    return case.is_sequence, case.shards, case.replicas, case.blocks


def _divided(case: Case) -> tuple[Any, ...]:
    """Equal for cases whose ranks run the same divided graph, as many at a time."""
    return _busy(case), case.tp, case.shards, case.replicas, case.is_sequence, case.hidden, case.blocks


def _busy(case: Case) -> int:
    return case.ranks // case.pp if case.tp > 1 else case.ranks


def _piped_s(
    case: Case,
    probed: Mapping[str, Any],
    computed: Mapping[str, float],
    exchanges: Sequence[tuple[str, str, float]],
    host: Mapping[str, float],
) -> float:
    """Replay the pipeline; ranks that divide a layer are one rank there, and all of them share the cores."""
    names = ["words", *(f"blocks.{number}" for number in range(case.blocks)), "head"]
    waits = computed["together_s"] / computed["alone_s"]
    parameters = {"words": WORDS * WIDTH, "head": (WORDS + 2) * WIDTH}
    sizes = [parameters.get(name, (4 * WIDTH + 3 * case.hidden + 4) * WIDTH) for name in names]
    update_s = waits * computed["update"] + host["update"]
    update_s += sum(seconds for _, phase, seconds in exchanges if phase == "update")
    layers = []
    for name, size in zip(names, sizes, strict=True):
        passes = {}
        for phase in ("forward", "backward"):
            own = [seconds for title, at, seconds in exchanges if at == phase and _layer(title) == name]
            share = host["passes"] / case.blocks / 3 * (1 if phase == "forward" else 2) * name.startswith("blocks")
            passes[f"{phase}_s"] = waits * computed[f"{name} {phase}"] + sum(own) + share
        output = 4 * BATCH * TOKENS * WIDTH // (case.tp if case.is_sequence else 1)
        layers.append(
            Layer(name, **passes, parameter_bytes=4 * size // case.tp, output_bytes=output,
                  update_s=update_s * size / sum(sizes))
        )  # fmt: skip
    rows = tuple((row["kind"], row["bytes"], row["latency_s"]) for row in probed["rows"])
    ranks = (RankGraph(0, ()), RankGraph(1, ()))
    topology = probed_topology(StepGraph(ranks, backend="gloo", measured=Measured(probed=rows)))
    pipeline = Pipeline(case.schedule, case.micro_batches, case.cuts, stages_per_rank=case.stages, return_outputs=False)
    plan = Plan(degrees=ParallelDegrees(pp=2), model_parallel=(pipeline,))
    graph = lower(TableSource(layers), plan, topology, case.micro_batches, fold=False).graph
    cores = ("all cores",) * 2 if case.tp > 1 else ()
    graph = replace(graph, processor_share=probed["processor_share"], is_contention_free=True, processors=cores)
    return replay(graph, topology).step_s


def _layer(title: str) -> str:
    return ".".join(title.split(".")[:2]) if title.startswith("blocks.") else "words" if "words" in title else "head"


def orders(found: Sequence[tuple[Case, float, float]]) -> tuple[int, int]:
    """Count pairs of plans of a decoder that differ, and those of them in the right order, by time an example."""
    clear = right = 0
    for (one, *a), (other, *b) in combinations(found, 2):
        if (one.hidden, one.blocks) == (other.hidden, other.blocks):
            (x, p), (y, q) = (
                [s / (c.shards * c.replicas * c.micro_batches) for s in of] for c, of in ((one, a), (other, b))
            )
            if max(x, y) / min(x, y) - 1 >= APART:
                clear, right = clear + 1, right + ((x < y) == (p < q))
    return clear, right


def tables(data: Path) -> list[dict[str, Any]]:  # noqa: ARG001 (its figures are kept here)
    """Judge predictions of the kept runs."""
    stored = read_json(FILE)
    parts = Parts(stored["cases"])
    found = [(case, one["step_s"], parts.step_s(case, one)) for case, one in parts.cases]
    body = [
        [f"`{case.name}`", str(case.ranks), *(f"{1e3 * s:.0f}" for s in both), f"{100 * (both[1] / both[0] - 1):+.1f}"]
        for case, *both in found
    ]
    (clear, right), off = orders(found), np.array([abs(p / s - 1) for _, s, p in found])
    note = (
        f"Decoders of width {WIDTH}, {WORDS} words, {BATCH} examples of {TOKENS} tokens in a micro-batch; 2 blocks, in "
        f"pipelines 4. Ranks are processes of one thread on {CORES} cores, over gloo, torch {stored['torch']}; median "
        "step. Predicted is the sum of parts that were timed without any step of a job: operators of the divided "
        "graph, by as many processes at once, which wait for the last one wherever an exchange would begin; each "
        "collective by itself; and the host's work for DTensors and replicas, in processor seconds, next to kernels as "
        "large as those of the job. The same part of several cases is the median of theirs. Where ranks are more than "
        "cores, host's work takes as many times longer, and computing is in the middle of two bounds: a rank that "
        "waits leaves its core to others, or to nobody. Of pipelines, layers with their exchanges are replayed with "
        "messages, and with what an operator loses next to one, by `probe`; stages whose ranks share all cores compute "
        "in turns. No number is fitted to a step, but which parts count was chosen with these errors in sight, and "
        f"there is no further test. All {len(found)} cases: {100 * off.mean():.1f} % off in the mean, "
        f"{100 * np.median(off):.1f} in the median. Order: right in {right} of {clear} pairs of plans of one decoder "
        f"whose times for an example differ by {100 * APART:.0f} % or more. The machine was shared: `tp 2` took 380 "
        "and 563 ms in two visits, of which the first counts."
    )
    commands = ["python -m benchmarks.plans.tensor_runs", "python -m benchmarks.plans tensor_steps --data . --publish"]
    columns = ["plan", "ranks", "measured, ms", "predicted, ms", "off, %"]
    return [
        {"title": "Real steps of tensor parallel plans here", "note": note, "commands": commands, "columns": columns,
         "rows": body}
    ]  # fmt: skip
