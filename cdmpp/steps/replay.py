"""Replay: a step graph run by the event engine until it repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cdmpp.collectives.topology import Topology
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.intervals import Interval
from cdmpp.simulate.timeline import Span, Timeline
from cdmpp.steps.exchange_tasks import check_granularity, measured_rates
from cdmpp.steps.keys import TaskKey
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.tasks import STEADY, check_work, step_ends_s, step_tasks


@dataclass(frozen=True)
class Replay:
    """Steps of all ranks, simulated one after the other. The one in steady state is reported."""

    graph: StepGraph
    timeline: Timeline
    """All steps. Keys are ``TaskKey``, resources ``Stream``."""

    @cached_property
    def window_s(self) -> Interval:
        """Begin and end of the step in steady state: the last end of the step before, and its own."""
        ends = step_ends_s(self.timeline)
        return ends[STEADY - 1], ends[STEADY]

    @property
    def step_s(self) -> float:
        """Seconds of one step in steady state."""
        return self.window_s[1] - self.window_s[0]

    @cached_property
    def spans(self) -> dict[TaskKey, Span]:
        """Spans of the step in steady state, in the order of their starts."""
        return {
            key: span for key, span in self.timeline.spans.items() if isinstance(key, TaskKey) and key.step == STEADY
        }

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """Spans, first to last, each of which waited for the one before; the last one ends the reported step."""
        return self.timeline.path_to(max(self.spans.values(), key=lambda span: span.end_s))


def replay(graph: StepGraph, topology: Topology | None = None, granularity: str = "collective") -> Replay:
    """Run a step graph with the exchanges that it has.

    Args:
        graph: what ranks compute and exchange.
        topology: what carries exchanges that were not measured; None where all were.
        granularity: of collectives on a topology. ``collective``: each is one task, which starts when the last rank
            arrives. ``ring step``: each is expanded into the steps of its rings, which share links; for 16 ranks at
            most.

    Raises:
        CdmppError: an unknown granularity, too many ranks for it, or more tasks than memory holds.
        DataError: an exchange that was not measured, and no topology.
    """
    check_granularity(granularity, len(graph.ranks))
    pushed = sum(one.kind == "push_pull" for one in graph.exchanges)
    check_work(sum(len(rank.ops) for rank in graph.ranks) + 2 * pushed * len(graph.ranks), len(graph.ranks))
    rates = {**({} if topology is None else topology.rates), **measured_rates(graph.exchanges)}
    return Replay(graph, simulate(step_tasks(graph, topology, granularity), rates=rates))
