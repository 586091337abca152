"""Predictions beside measured steps: of jobs as they were traced, and of jobs whose trace was not given."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.scenario import Scenario, from_dict
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.links import scale_bandwidth
from cdmpp.steps.transforms.rebucket import rebucket
from cdmpp.steps.transforms.scale import scale_ranks
from cdmpp.steps.wire import PAYLOAD
from cdmpp.trace.graph_file import graph_from_dict

DRIFT = 0.10
"""A visit whose reference kernel was slower by more than this than in the best one does not count."""
CHANGES = ("mbit", "bucket_mb", "ranks")


@dataclass(frozen=True)
class Measured:
    """A scenario that ran."""

    scenario: Scenario
    graph: StepGraph
    seconds: float
    """Median step without the profiler."""
    before: float
    after: float
    """Medians before and after the window of the profiler, means over ranks."""
    link_gbps: float
    """What the links carried; in rows from before that was measured, what was asked of them."""


@dataclass(frozen=True)
class Figure:
    """One prediction."""

    kind: str
    """replay, or the setting that was changed."""
    scenario: str
    traced: str
    """Whose trace was read."""
    measured_s: float
    traced_s: float
    """Median of the traced steps; nan where the trace is another scenario's."""
    predicted_s: float
    anchored_s: float
    """The unprofiled step of the traced job times the ratio of the two replays."""
    no_overlap_s: float
    """Computing and wire times one after the other."""
    full_overlap_s: float
    """The longer of the two."""

    def error(self, column: str = "predicted_s") -> float:
        """Relative, without sign."""
        return abs(getattr(self, column) / self.measured_s - 1)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """What was measured into a folder, a job a line."""
    file = folder / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def usable(rows: Sequence[Mapping[str, Any]], drift: float = DRIFT) -> tuple[list[Measured], list[str]]:
    """One a scenario, the visit of the median step among those that count; and why others do not."""
    best = min(second for row in rows for ref in row["reference_s"] for second in ref)
    visits: dict[str, list[Measured]] = defaultdict(list)
    refused = []
    for row in rows:
        usual = float(np.median(row["reference_s"])) / best - 1  # ranks that share a core time it one over the other
        if usual > drift:
            refused.append(f"{row['name']}: its reference kernel was {usual:.0%} slower than in the best visit")
            continue
        before, after = np.mean(row["before_s"]), np.mean(row["after_s"])
        scenario, graph = from_dict(row["scenario"]), graph_from_dict(row["job"])
        one = Measured(scenario, graph, row["unprofiled_s"], float(before), float(after), _link_gbps(scenario, rows))
        visits[row["name"]].append(one)
    found = [sorted(of, key=lambda one: one.seconds)[(len(of) - 1) // 2] for of in visits.values()]
    return found, refused


def _link_gbps(scenario: Scenario, rows: Sequence[Mapping[str, Any]]) -> float:
    """As a rate of Ethernet, median over jobs on such links.

    Rings send and receive at the same time; messages from and to a server wait for each other.
    """
    way = "one_way" if scenario.scheme == "server" else "both_ways"
    alike = [row for row in rows if row["scenario"]["mbit"] == scenario.mbit and "carried_mbit" in row]
    if not alike:
        return 1e-3 * scenario.mbit
    return 1e-3 / PAYLOAD * float(np.median([row["carried_mbit"][way] for row in alike]))


def figures(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Every job replayed from its own trace, and from the traces of those that differ in one setting."""
    for one in measured:
        yield _figure("replay", one, one, one.graph)
    for one in measured:
        for other in measured:
            differs = one.scenario.differs_in(other.scenario)
            if len(differs) == 1 and differs[0] in CHANGES and _same_place(one.scenario, other.scenario, differs[0]):
                yield _figure(differs[0], one, other, _as(other, one))


def _same_place(one: Scenario, other: Scenario, change: str) -> bool:
    """As many ranks on a core; where the number of ranks changes, that is what packs them."""
    share = [len(s.pins) / len(set(s.pins)) for s in (one, other)]
    return share[0] == share[1] and (change == "ranks" or one.pins == other.pins)


def _as(traced: Measured, measured: Measured) -> StepGraph:
    """The traced job at the settings of the measured one."""
    graph, wanted = traced.graph, measured.scenario
    if wanted.ranks != traced.scenario.ranks:
        graph = scale_ranks(graph, wanted.ranks)
    if wanted.bucket_mb != traced.scenario.bucket_mb and wanted.scheme == "ddp":
        graph = rebucket(graph, round(2**20 * wanted.bucket_mb))
    if wanted.mbit == traced.scenario.mbit:
        return graph
    return scale_bandwidth(graph, measured.link_gbps / traced.link_gbps, traced.link_gbps)


def _figure(kind: str, wanted: Measured, traced: Measured, graph: StepGraph) -> Figure:
    busy_s = max(rank.busy_s + rank.idle_s for rank in graph.ranks)
    wire_s = sum(one.measured_s for one in graph.exchanges)
    step_s = replay(graph).step_s
    return Figure(
        kind,
        wanted.scenario.name,
        traced.scenario.name,
        wanted.seconds,
        traced.graph.measured.step_s if kind == "replay" else math.nan,
        step_s,
        traced.seconds * step_s / replay(traced.graph).step_s if kind != "replay" else math.nan,
        busy_s + wire_s,
        max(busy_s, wire_s),
    )


@dataclass(frozen=True)
class Score:
    """Errors of a group of predictions."""

    group: str
    column: str
    count: int
    median: float
    p90: float


def scores(found: Sequence[Figure]) -> list[Score]:
    """Return scores of replays and what-ifs, all and by setting, beside both baselines and measured steps exchanged."""
    groups = {"replay": [f for f in found if f.kind == "replay"], "what if": [f for f in found if f.kind in CHANGES]}
    groups |= {f"what if {change}": [f for f in found if f.kind == change] for change in CHANGES}
    rows = []
    for group, inside in groups.items():
        if inside:
            anchored = ("anchored_s",) if group != "replay" else ()
            for column in ("predicted_s", *anchored, "no_overlap_s", "full_overlap_s"):
                rows.append(_score(group, column, [one.error(column) for one in inside]))
            rows.append(_score(group, "permuted", [one.error() for one in permuted(inside)]))
    return rows


def _score(group: str, column: str, errors: Sequence[float]) -> Score:
    return Score(group, column, len(errors), float(np.median(errors)), float(np.percentile(errors, 90)))


def permuted(found: Sequence[Figure], seed: int = 0) -> list[Figure]:
    """Each with the measured step of another scenario: a score that does not notice is worth nothing."""
    names = sorted({one.scenario for one in found})
    order = np.random.default_rng(seed).permutation(len(names))
    step = {one.scenario: one.measured_s for one in found}
    other = {
        names[a]: step[names[b]] for a, b in zip(order, np.roll(order, 1), strict=True)
    }  # a circle: nobody keeps its own
    return [replace(one, measured_s=other[one.scenario]) for one in found]


def bucket_orders(found: Sequence[Figure], apart: float = 0.03) -> list[tuple[str, int, int]]:
    """Trace -> pairs of bucket sizes whose measured steps are ``apart`` or more, and how many of them are in order."""
    by_trace: dict[str, dict[str, Figure]] = defaultdict(dict)
    own = {one.scenario: one for one in found if one.kind == "replay"}
    for one in found:
        if one.kind == "bucket_mb":
            by_trace[one.traced][one.scenario] = one
    rows = []
    for traced, others in sorted(by_trace.items()):
        sizes = [*others.values(), own[traced]]
        if len(sizes) < 3:
            continue
        pairs = [(a, b) for n, a in enumerate(sizes) for b in sizes[n + 1 :]]
        clear = [(a, b) for a, b in pairs if abs(a.measured_s / b.measured_s - 1) >= apart]
        right = [(a, b) for a, b in clear if (a.measured_s < b.measured_s) == (a.predicted_s < b.predicted_s)]
        rows.append((traced, len(clear), len(right)))
    return rows
