"""Simple cuts, beside which a planner is judged: equal numbers of layers, greedy, and the best of the layers' order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdmpp.partition.chain import Chain, chain_of, least_seconds
from cdmpp.partition.downsets import prefixes
from cdmpp.partition.dynamic import DynamicSearch
from cdmpp.partition.problem import PartitionProblem


def equal_layers(problem: PartitionProblem) -> Chain:
    """Give each device, in the order in which they are given, as many layers."""
    return _cut(problem, np.linspace(0, 1, len(problem.graph.reads) + 1))


def greedy(problem: PartitionProblem) -> Chain:
    """Fill one device after the other until it has its part of all seconds, in the order in which they are given."""
    order = prefixes(problem.graph)
    until_s = order.sums(least_seconds(problem))
    return _cut(problem, until_s / (until_s[-1] or 1.0))


def in_order(problem: PartitionProblem) -> Chain | None:
    """Return the best cut of the order in which the layers stand; None where none fits."""
    return DynamicSearch(problem, prefixes(problem.graph)).best()


def _cut(problem: PartitionProblem, share: Sequence[float] | np.ndarray) -> Chain:
    """Cut where the share of all that lies before is nearest to that of the devices; a stage has a group at least."""
    kinds = [next(n for n, kind in enumerate(problem.kinds) if kind.key == one.key) for one in problem.devices]
    has, parts = prefixes(problem.graph).has, list[tuple[Sequence[int], int, int]]()
    count, begin = min(len(kinds), len(has) - 1), 0
    for number in range(1, count + 1):
        near = int(np.abs(np.asarray(share) - number / count).argmin())
        end = len(has) - 1 if number == count else min(max(near, begin + 1), len(has) - 1 - (count - number))
        parts.append((np.flatnonzero(has[end] & ~has[begin]).tolist(), kinds[number - 1], 1))
        begin = end
    return chain_of(problem, parts)
