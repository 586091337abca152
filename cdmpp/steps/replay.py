"""Replay: a step graph run by the event engine until it repeats itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.intervals import Interval, length_s, union
from cdmpp.simulate.spans import Span, Spans
from cdmpp.simulate.timeline import Timeline
from cdmpp.steps.contention import shared_s, with_contention, without_contention
from cdmpp.steps.exchange_tasks import check_granularity, measured_rates
from cdmpp.steps.keys import TaskKey
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.synchrony import Synchrony
from cdmpp.steps.tasks import STEADY, STEPS, check_work, step_ends_s, step_tasks

_TURNS, _CLOSE = 12, 1e-3
"""Most replays of a contention-free graph, and the share of its step by which the last two may differ."""


@dataclass(frozen=True)
class Replay:
    """Steps of all ranks are simulated one after the other. The one in steady state is reported."""

    graph: StepGraph
    timeline: Timeline
    """All steps. Keys are ``TaskKey``, resources ``Stream``."""

    @cached_property
    def window_s(self) -> Interval:
        """The step in steady state lies between the last end of the step before, and its own."""
        ends = step_ends_s(self.timeline, len(self.graph.ranks))
        return ends[STEADY - 1], ends[STEADY]

    @property
    def step_s(self) -> float:
        """One step in steady state takes so long."""
        return self.window_s[1] - self.window_s[0]

    @cached_property
    def spans(self) -> dict[TaskKey, Span]:
        """These are the spans of the step in steady state, in the order of their starts."""
        found = self._all.of(self._steady)
        return {key: span for key, span in found.items() if isinstance(key, TaskKey)}

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """Each span, first to last, waited for the one before; the last one ends the reported step."""
        return self.timeline.path_to(self._all.last(self._steady))

    @property
    def _all(self) -> Spans:
        assert isinstance(self.timeline.spans, Spans)
        return self.timeline.spans

    @property
    def _steady(self) -> range:
        """Numbers of the tasks of the step in steady state: steps have equally many."""
        many = len(self.timeline.spans) // STEPS
        return range(STEADY * many, (STEADY + 1) * many)

    @cached_property
    def critical_s(self) -> dict[str, float]:
        """Sum by kind the reported step's seconds on the critical path, most first; ``gap`` lies between spans."""
        found: dict[str, float] = {}
        until_s = begun_s = self.window_s[0]
        for span in self.critical_path:
            for kind, start_s, end_s in (("gap", until_s, span.start_s), (span.task.label, span.start_s, span.end_s)):
                if end_s > max(start_s, begun_s):
                    found[kind] = found.get(kind, 0.0) + end_s - max(start_s, begun_s)
            until_s = max(until_s, span.end_s)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def busy_s(self) -> Mapping[int, float]:
        """On each rank an op runs on any of its streams for so many seconds of the reported step."""
        return self._under_way_s("op")

    @cached_property
    def waits_s(self) -> Mapping[int, float]:
        """Each rank runs nothing, not even a delay, for so many seconds: it waits for exchanges."""
        spent = self._under_way_s("op", "delay", "start", "end")
        return {rank: self.rank_step_s(rank) - seconds for rank, seconds in spent.items()}

    def rank_step_s(self, rank: int) -> float:
        """Return the seconds from the end of the step before to the end of the reported one, on one rank."""
        before, own = (self.timeline.spans[TaskKey(step, "end", rank, 0)].end_s for step in (STEADY - 1, STEADY))
        return own - before

    def _under_way_s(self, *kinds: str) -> dict[int, float]:
        spans: dict[int, list[Interval]] = {rank: [] for rank in range(len(self.graph.ranks))}
        for key, span in self.spans.items():
            if key.kind in kinds:
                spans[key.rank].append((span.start_s, span.end_s))
        return {rank: length_s(union(own)) for rank, own in spans.items()}


def replay(
    graph: StepGraph, topology: Topology | None = None, granularity: str = "collective",
    synchrony: Synchrony | None = None,
) -> Replay:  # fmt: skip
    """Run a step graph with the exchanges that it has.

    Ops of a contention-free graph take longer next to exchanges: it is run until that changes its step no more.

    Args:
        graph: what ranks compute and exchange.
        topology: what carries exchanges that were not measured; None where all were.
        granularity: of collectives on a topology. ``collective``: each is one task, which starts when the last rank
            arrives. ``ring step``: each is expanded into the steps of its rings, which share links; for 16 ranks at
            most.
        synchrony: which exchanges an update waits for; None: those of its own step.

    Raises:
        CdmppError: an unknown granularity, too many ranks for it, or more tasks than memory holds.
        DataError: an exchange that was not measured, and no topology.
    """
    check_granularity(granularity, len(graph.ranks))
    pushed = sum(one.kind == "push_pull" for one in graph.exchanges)
    check_work(sum(rank.task_count for rank in graph.ranks) + 2 * pushed * len(graph.ranks), len(graph.ranks))
    made = _run(graph, topology, granularity, synchrony)
    if not graph.is_contention_free:
        return made
    shared, last_s = {rank.rank: [0.0] * len(rank.ops) for rank in graph.ranks}, 0.0
    for turn in range(_TURNS):
        if abs(made.step_s - last_s) <= _CLOSE * made.step_s:
            break
        now, last_s = shared_s(made.graph, made.timeline), made.step_s
        if turn > _TURNS // 3:  # it goes to and fro
            now = {rank: [(a + b) / 2 for a, b in zip(now[rank], shared[rank], strict=True)] for rank in now}
        shared = now
        made = _run(with_contention(graph, shared), topology, granularity, synchrony)
    return made


def contention_free(graph: StepGraph) -> StepGraph:
    """Return ops as they are next to no exchange; the same graph where no share of a processor was probed."""
    if graph.is_contention_free or not graph.processor_share:
        return graph
    return without_contention(graph, shared_s(graph, replay(graph).timeline))


def _run(graph: StepGraph, topology: Topology | None, granularity: str, synchrony: Synchrony | None) -> Replay:
    rates = {**({} if topology is None else topology.rates), **measured_rates(graph.exchanges)}
    rates |= dict.fromkeys(graph.processors, 1.0)
    return Replay(graph, simulate(step_tasks(graph, topology, granularity, synchrony=synchrony), rates=rates))
