"""Solve: the best partition of a problem, with a proof that none is faster, or a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdmpp.errors import InfeasiblePlanError
from cdmpp.partition.chain import Chain, ideal_s, merged
from cdmpp.partition.downsets import Downsets, every_downset, prefixes
from cdmpp.partition.dynamic import DynamicSearch
from cdmpp.partition.front_bound import front_bound_s
from cdmpp.partition.graph import PartitionGraph
from cdmpp.partition.integer import integer_search
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.simple import equal_layers, greedy, in_order
from cdmpp.partition.windows import Windows
from cdmpp.platform.limits import numbers
from cdmpp.units import quantity

DYNAMIC, INTEGER, ORDER = "dynamic programming", "integer programming", "dynamic programming of the layers' order"
MOST_SETS = 2000
"""Sets of layers over which the dynamic programme runs at most."""
MOST_LOOKED = 30_000
"""Sets that are looked at to find these."""
MOST_WORK = 4e9
"""Numbers that a dynamic programme compares at most."""
SECONDS = numbers(0, 86400, "seconds")
_CLOSE = 1e-6
_FRONT = 0.25
"""Part of the seconds of integer programming that go into a bound from the first stages."""


@dataclass(frozen=True)
class Partition:
    """The best chain that was found, and what is known of all others."""

    chain: Chain
    bound_s: float
    """No chain has a slowest stage that is faster than this."""
    method: str
    """``DYNAMIC``, ``INTEGER`` or ``ORDER``."""
    sets: int
    """Sets of layers that were compared, by dynamic programming."""
    greedy: Chain
    equal_layers: Chain
    all_devices_s: float | None
    """Slowest stage if every device has one, before neighbours are merged; None: not worked out."""
    orders: tuple[int, int] = (0, 0)
    """Orders of devices that integer programming searched, and all that differ; dynamic programming has all."""

    @property
    def gap(self) -> float:
        """Return by what part of the bound the chain is slower than it."""
        return self.chain.slowest_s / self.bound_s - 1 if self.bound_s else 0.0

    @property
    def is_proven(self) -> bool:
        """Return True if no chain is faster."""
        return self.gap <= _CLOSE


def solve(problem: PartitionProblem, seconds: float = 20.0) -> Partition:
    """Find the best partition.

    Chains of all sets of layers are compared by dynamic programming where these are few; sets that no partition faster
    than a known one can have are left out. Else integer programming (HiGHS, through SciPy) searches for ``seconds``,
    and what it leaves open is the bound.

    Args:
        problem: network, devices and schedule.
        seconds: that integer programming may take.

    Raises:
        InfeasiblePlanError: no partition fits into memory; it says how much is missing where.
    """
    return _Solver(problem, SECONDS.fitting("seconds", seconds)).partition()


def leanest(problem: PartitionProblem) -> Chain:
    """Return the partition that exceeds the memory of its devices least, among those that are looked at."""
    few = every_downset(problem.graph, MOST_SETS)
    search = DynamicSearch(problem, prefixes(problem.graph) if few is None else few)
    return search.leanest()


class _Solver:
    def __init__(self, problem: PartitionProblem, seconds: float) -> None:
        self.graph = problem.graph
        is_free = np.all([(one.seconds == 0) for one in problem.devices], axis=0)
        contracted = self.graph.contracted(np.where(is_free, 0.0, 1.0))
        if problem.replicas or len(problem.devices) <= len(contracted.reads):
            problem = _with_graph(problem, contracted)
        self.problem, self.seconds = problem, seconds

    def partition(self) -> Partition:
        problem = self.problem
        if (sets := self._sets) is not None:
            chain = DynamicSearch(problem, sets).best() or self._known
            if chain is None:
                raise InfeasiblePlanError(missing_memory(leanest(problem)))
            return self._made(chain, chain.slowest_s, DYNAMIC, len(sets))
        least_s = ideal_s(problem)
        found, method, orders = None, INTEGER, (0, 0)
        if problem.replicas:
            bound_s, method = least_s, ORDER
        else:
            bound_s = front_bound_s(problem, self._most_s, _FRONT * self.seconds)
            if bound_s < self._most_s * (1 - _CLOSE):
                searched = integer_search(problem, self._most_s, (1 - _FRONT) * self.seconds)
                found, orders = searched.chain, (searched.orders, searched.all_orders)
                bound_s = max(bound_s, searched.bound_s)
        if (chain := _best([self._known, found])) is None:
            raise InfeasiblePlanError(missing_memory(leanest(problem)))
        return self._made(chain, min(max(bound_s, least_s), chain.slowest_s), method, 0, orders)

    @cached_property
    def _known(self) -> Chain | None:
        """The best of the simple chains that fit, merged."""
        return _best([in_order(self.problem), *self._merged()])

    def _merged(self) -> Iterator[Chain]:
        for one in (greedy(self.problem), equal_layers(self.problem)):
            yield merged(one)

    @property
    def _most_s(self) -> float:
        return math.inf if self._known is None else self._known.slowest_s

    @cached_property
    def _sets(self) -> Downsets | None:
        """All sets that a partition at least as fast as the known one may have; None where they are too many."""
        problem, most = self.problem, len(self.problem.devices)
        if math.isinf(self._most_s):
            found = every_downset(problem.graph, MOST_SETS)
        else:
            windows = Windows(problem, self._most_s)
            pairs = [windows.cut(devices) for devices in range(1, most)]
            parts = [tuple(frozenset(np.flatnonzero(one).tolist()) for one in pair) for pair in pairs]
            own = [(inside, outside) for inside, outside in parts if not inside & outside]
            found = every_downset(problem.graph, MOST_LOOKED, own, windows.is_possible)
        if found is None or len(found) > MOST_SETS or DynamicSearch(problem, found).size > MOST_WORK:
            return None
        return found

    def _made(
        self, chain: Chain, bound_s: float, method: str, sets: int, orders: tuple[int, int] = (0, 0)
    ) -> Partition:
        whole = _with_graph(self.problem, self.graph)
        all_devices_s = None
        if (few := every_downset(self.problem.graph, MOST_SETS // 4)) is not None:
            search = DynamicSearch(self.problem, few)
            all_devices_s = search.with_all_devices() if search.size <= MOST_WORK / 10 else None
        first, second = (Chain(whole, make(self.problem).parts) for make in (greedy, equal_layers))
        return Partition(Chain(whole, chain.parts), bound_s, method, sets, first, second, all_devices_s, orders)


def missing_memory(chain: Chain) -> str:
    """Say how much memory the leanest partition of a problem lacks, on which device, and what would help."""
    problem = chain.problem
    limits = [problem.kinds[one.kind].memory_bytes for one in chain.parts]
    over = [cost.bytes - limit for cost, limit in zip(chain.costs, limits, strict=True)]
    place = int(np.argmax(over))
    cost, part = chain.costs[place], chain.parts[place]
    layers = problem.graph.layers
    names = f"{layers[part.layers[0]].name} to {layers[part.layers[-1]].name}"
    what = {"weights, gradients and states": cost.weight_bytes,
            f"inputs and activations of {cost.live} micro-batch{'es' * (cost.live > 1)}": cost.stash_bytes,
            "one pass": cost.passing_bytes}  # fmt: skip
    told = ", ".join(f"{name} {quantity(size, 'B')}" for name, size in sorted(what.items(), key=lambda one: -one[1]))
    is_one = len(set(problem.graph.group_of[list(part.layers)].tolist())) == 1
    names = layers[part.layers[0]].name + ", which cannot be cut" if len(part.layers) == 1 or is_one else names
    helps = "fewer examples in a micro-batch, " * (cost.stash_bytes > 0)
    helps += "an optimizer with fewer states, " * (problem.states > 0) + "more devices, or devices with more memory"
    return (
        f"no partition fits under {problem.schedule.name}: of {_devices(problem)} the leanest has {len(chain.parts)} "
        f"stage{'s' * (len(chain.parts) > 1)}, and stage {place} ({names}) needs {quantity(cost.bytes, 'B')} on "
        f"{chain.names()[place][0]}, which may hold {quantity(limits[place], 'B')}: "
        f"{quantity(over[place], 'B')} are missing ({told}). What would help: {helps}"
    )


def _devices(problem: PartitionProblem) -> str:
    count = len(problem.devices)
    return f"{count} device{'s' * (count > 1)}"


def _best(chains: list[Chain | None]) -> Chain | None:
    fitting = [one for one in chains if one is not None and one.fits]
    return min(fitting, key=lambda one: (one.slowest_s, one.devices, one.squares), default=None)


def _with_graph(problem: PartitionProblem, graph: PartitionGraph) -> PartitionProblem:
    return replace(problem, graph=graph)
