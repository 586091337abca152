"""The search by integer programming, where sets of layers are too many to list.

A variable for each group of layers and each cut says whether the group lies before the cut. Devices stand in a given
order; every order that differs is a programme of its own. First stages may be empty, so that fewer devices are used.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cdmpp.partition.chain import Chain, Part, capacities, least_seconds
from cdmpp.partition.devices import pair_link
from cdmpp.partition.integer_model import ONE, IntegerModel, Row, added, times
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.windows import Windows

MOST_ORDERS = 24
"""Orders of devices that are tried."""
_NONE: tuple[Row, Row, Row, Row] = ({}, {}, {}, {})


class Searched(NamedTuple):
    """What integer programming found."""

    chain: Chain | None
    """The best chain that fits; None where none was found."""
    bound_s: float
    """No chain has a faster slowest stage, if it is above 0."""
    orders: int
    """Orders of devices that were searched."""
    all_orders: int
    """Those that differ."""


def integer_search(problem: PartitionProblem, most_s: float, seconds: float) -> Searched:
    """Search for a chain as fast as a known one, or faster.

    Args:
        problem: without replicas.
        most_s: seconds of the slowest stage of the known chain; infinite where none is known.
        seconds: that the search may take.

    Returns:
        The best chain, with a bound that is at most ``most_s``; where orders are left out, they are not bounded.
    """
    orders = list(itertools.islice(_orders(problem.counts), MOST_ORDERS))
    every = math.factorial(sum(problem.counts)) // math.prod(map(math.factorial, problem.counts))
    best, bound_s, begun = None, math.inf, time.monotonic()
    for number, order in enumerate(orders):
        left_s = (seconds - (time.monotonic() - begun)) / (len(orders) - number)
        chain, own_s = Programme(problem, order, most_s).solved(left_s)
        bound_s = min(bound_s, own_s)
        if chain is not None and chain.fits and (best is None or chain.slowest_s < best.slowest_s):
            best, most_s = chain, min(most_s, chain.slowest_s)
    return Searched(best, min(bound_s, most_s) if every == len(orders) else 0.0, len(orders), every)


def _orders(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders that differ, of so many devices of each kind."""
    if not any(counts):
        yield ()
    for kind, count in enumerate(counts):
        if count:
            for rest in _orders([one - (place == kind) for place, one in enumerate(counts)]):
                yield (kind, *rest)


class Programme:
    """All times are parts of ``unit_s``. With ``first`` stages only: what is behind them is divided evenly.

    These have layers then, and no limit of memory.
    """

    def __init__(
        self, problem: PartitionProblem, order: tuple[int, ...], most_s: float, first: int | None = None
    ) -> None:
        self.problem, self.order, self.most_s, self.is_part = problem, order, most_s, first is not None
        self.groups = range(len(problem.graph.reads))
        whole_s = max(float((one.seconds + one.forward_s).sum()) for one in problem.kinds)
        self.unit_s = most_s if math.isfinite(most_s) and most_s else whole_s or 1.0
        self.model = IntegerModel()
        self.slowest = self.model.variable(1.0 + 1e-9 if math.isfinite(most_s) else math.inf)
        stages = len(order) if first is None else first
        self.before = [self._cut(cut) for cut in range(len(order) - 1 if first is None else first)]
        for earlier, later in itertools.pairwise(self.before):
            for group in self.groups:
                self.model.at_most({earlier[group]: 1.0}, {later[group]: 1.0})
        self.crosses = [self._crossing(cut) for cut in range(len(self.before))]
        self.held = [[self._held(stage, one.readers) for one in problem.graph.tied] for stage in range(stages)]
        for stage in range(stages):
            self._fill(stage)
            self._stage(stage)
        if first is not None:
            self._rest(first)

    def _cut(self, cut: int) -> list[int]:
        """For each group a variable that is 1 where it lies before the cut."""
        reads, model = self.problem.graph.reads, self.model
        inside = outside = np.zeros(len(reads), np.bool_)
        if math.isfinite(self.most_s):
            inside, outside = Windows(self.problem, self.most_s, self.order).cut(cut + 1)
        found = [model.variable(float(not outside[group]), integer=True) for group in self.groups]
        for group, own in enumerate(reads):
            if inside[group]:  # where it is ``outside`` too, nothing is as fast as the known chain
                model.at_most({ONE: 1.0}, {found[group]: 1.0})
            for other in own:
                model.at_most({found[group]: 1.0}, {found[other]: 1.0})
        return found

    def _lies(self, group: int, cut: int) -> Row:
        """Make the row that tells whether a group lies before a cut; they are numbered from 0, -1 is the begin."""
        if cut < 0:
            return {}
        return {self.before[cut][group]: 1.0} if cut < len(self.before) else {ONE: 1.0}

    def _on(self, group: int, stage: int) -> Row:
        """Make the row that tells whether a group is on a stage."""
        return added(self._lies(group, stage), times(self._lies(group, stage - 1), -1.0))

    def _sum(self, stage: int, values: np.ndarray) -> Row:
        """Sum of the values of the layers on a stage."""
        each = np.bincount(self.problem.graph.group_of, values, len(self.groups))
        return added(*(times(self._on(group, stage), float(each[group])) for group in self.groups))

    def _crossing(self, cut: int) -> tuple[Row, Row, Row, Row]:
        """Messages and bytes of results over a cut, and of gradients."""
        model, graph, group = self.model, self.problem.graph, self.problem.graph.group_of
        sent, readers = (Row(), Row(), Row(), Row()), dict[int, set[int]]()
        for source, place in graph.edges:
            if group[source] != group[place] and graph.layers[source].output_bytes:
                readers.setdefault(source, set()).add(int(group[place]))
        for source, own in readers.items():
            crosses, size = model.variable(), float(graph.layers[source].output_bytes)
            for one in own:
                model.at_most(self._lies(int(group[source]), cut), added(self._lies(one, cut), {crosses: 1.0}))
            sent[0][crosses], sent[1][crosses] = 1.0, size
            if graph.layers[source].has_gradient:
                sent[2][crosses], sent[3][crosses] = 1.0, size
        messages = model.variable(math.inf)
        model.at_most(sent[0], {messages: 1.0})
        for one in (group for group in self.groups if not graph.reads[group]):
            model.at_most(self._lies(one, cut), {messages: 1.0})
        return {messages: 1.0}, *sent[1:]

    def _rest(self, first: int) -> None:
        """What is behind the first stages takes its part of the other devices; and there is a first stage."""
        share = capacities(self.problem)[self.order[0]] * (len(self.order) - first)
        least = times(self._sum(first, least_seconds(self.problem)), 1 / (self.unit_s * share))
        self.model.at_most(least, {self.slowest: 1.0})
        sources = [group for group in self.groups if not self.problem.graph.reads[group]]
        self.model.at_most({ONE: 1.0}, added(*(self._lies(one, 0) for one in sources)))

    def _held(self, stage: int, readers: tuple[int, ...]) -> int:
        """Return the variable that is 1 where a stage has a reader of a parameter."""
        held = self.model.variable()
        for one in {int(self.problem.graph.group_of[place]) for place in readers}:
            self.model.at_most(self._on(one, stage), {held: 1.0})
        return held

    def _shared(self, stage: int, number: int) -> int:
        """Return the variable that is 1 where a stage and another one hold a tied parameter."""
        shared = self.model.variable()
        for other, held in enumerate(self.held):
            if other != stage:
                both = {self.held[stage][number]: 1.0, held[number]: 1.0}
                self.model.at_most(both, {shared: 1.0, ONE: 1.0})
        return shared

    def _fill(self, stage: int) -> None:
        """A stage behind one with layers has some too: else its device would only pass messages on."""
        own = added(*(self._on(group, stage) for group in self.groups))
        for group in (group for group in self.groups if not self.problem.graph.reads[group]):
            self.model.at_most(self._lies(group, stage - 1), own)

    def _stage(self, stage: int) -> None:
        problem, graph = self.problem, self.problem.graph
        device, links = problem.kinds[self.order[stage]], [problem.kinds[one].link for one in self.order]
        tied = {number: one.bytes for number, one in enumerate(graph.tied)}
        parameters = {self.held[stage][number]: float(size) for number, size in tied.items()}
        held = added(self._sum(stage, graph.own_bytes), parameters)
        wire = pair_link(device.link, device.link)
        sums = {self._shared(stage, number): 2 * wire.seconds(size) for number, size in tied.items()}
        update = added(times(held, device.update_s / max(graph.parameter_bytes, 1)), sums)
        forward = self._sum(stage, device.forward_s)
        backward = added(self._sum(stage, device.backward_s), times(forward, float(problem.recompute)))
        copied = times(held, problem.updates / device.copy_bytes_per_s)
        has_two = problem.schedule.passes_side_by_side
        passes = [added(forward, copied if has_two else {}), added(backward, times(update, problem.updates))]
        front = self.crosses[stage - 1] if stage else _NONE
        behind = self.crosses[stage] if stage < len(self.crosses) else _NONE
        if any(vars(host := device.host).values()):
            works = self._works(stage)
            send_s, receive_s = (host.send_s, host.receive_s) if problem.overlap else (0.0, 0.0)
            own = {works: host.pass_s}, {works: host.pass_s + problem.updates * host.update_s}
            passes[0] = added(passes[0], own[0], times(behind[0], send_s), times(front[0], receive_s))
            passes[1] = added(passes[1], own[1], times(front[2], send_s), times(behind[2], receive_s))
        messages = list[Row]()  # of results in front and behind, of gradients in front and behind
        for at in (0, 2):
            for sent, other in ((front, max(stage - 1, 0)), (behind, min(stage + 1, len(links) - 1))):
                pair = pair_link(links[other], device.link)
                messages.append(added(times(sent[at], pair.alpha_s), times(sent[at + 1], pair.beta_s)))
        if not problem.overlap:
            passes = [added(passes[0], *messages[:2]), added(passes[1], *messages[2:])]
        computed = passes if has_two else [added(*passes)]
        if problem.overlap:
            busy = [times(added(a, b), device.link.beta_s) for a, b in ((behind[1], front[3]), (front[1], behind[3]))]
            computed += [*messages, *busy]
        for row in computed:
            self.model.at_most(times(row, 1 / self.unit_s), {self.slowest: 1.0})
        if math.isfinite(device.memory_bytes) and not self.is_part:
            self._memory(stage, held, front, behind)

    def _works(self, stage: int) -> int:
        """Return the variable that is 1 where a stage has layers."""
        works = self.model.variable()
        for group in self.groups:
            self.model.at_most(self._on(group, stage), {works: 1.0})
        return works

    def _memory(self, stage: int, held: Row, front: tuple[Row, ...], behind: tuple[Row, ...]) -> None:
        problem, graph, model = self.problem, self.problem.graph, self.model
        after, limit = len(self.order) - 1 - stage, problem.kinds[self.order[stage]].memory_bytes
        live, work = problem.live(after), model.variable(math.inf)
        most = np.zeros(len(self.groups))
        np.maximum.at(most, graph.group_of, graph.column("work_bytes"))
        for group in self.groups:
            if most[group]:
                model.at_most(times(self._on(group, stage), float(most[group] / limit)), {work: 1.0})
        first, versions = self._first(stage), problem.versions(after, is_first=stage == 0)
        fewer = versions - problem.versions(after)  # of the only stage, which holds all parameters
        rows = [
            times(held, versions + 1 + problem.states), {first: -float(fewer * graph.parameter_bytes)},
            times(self._sum(stage, graph.column("saved_bytes")), 1.0 if problem.recompute else live),
            times(front[1], live), front[3], behind[3], {first: float(live * graph.input_bytes)},
        ]  # fmt: skip
        model.at_most(added(times(added(*rows), 1 / limit), {work: 1.0}), {ONE: 1.0})

    def _first(self, stage: int) -> int:
        """Return the variable that is 1 where the network begins with a stage."""
        sources = [group for group in self.groups if not self.problem.graph.reads[group]]
        first, earlier = self.model.variable(), added(*(self._lies(one, stage - 1) for one in sources))
        for one in sources:
            self.model.at_most(self._lies(one, stage), added(earlier, {first: 1.0}))
            self.model.at_most(added(self._lies(one, stage - 1), {first: 1.0}), {ONE: 1.0})
        return first

    def solved(self, seconds: float) -> tuple[Chain | None, float]:
        """Return the chain of the best solution, if one was found, and a bound in seconds."""
        values, bound = self.model.smallest(self.slowest, seconds)
        if values is None:
            return None, bound * self.unit_s
        group, parts, seen = self.problem.graph.group_of, list[Part](), np.zeros(len(self.groups), np.bool_)
        for stage, kind in enumerate(self.order):
            now = np.ones(len(self.groups), np.bool_)
            if stage < len(self.before):
                now = values[self.before[stage]] > 0.5
            layers = np.flatnonzero((now & ~seen)[group])
            if len(layers):
                parts.append(Part(tuple(layers.tolist()), kind))
            seen |= now
        return Chain(self.problem, tuple(parts)), bound * self.unit_s
