"""How often each basic block runs: constants decide what they can, samples of the loop counters decide the rest."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

import networkx as nx

from cdmpp.machine_code.block_graph import shares
from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.ir import BRANCH, Function
from cdmpp.machine_code.loops import Loop

SAMPLES = 32
_FIRST_THEN_OTHER = re.compile(r'(%"?[\w.$-]+"?) = phi i1 \[ (true|false), %"?([\w.$-]+)"? \], \[ (true|false), ')


def frequencies(function: Function, constants: Constants, loops: Sequence[Loop]) -> dict[str, float]:
    """Block -> runs per call of the function.

    A branch inside a loop nest, such as that of a padded convolution, is followed for ``SAMPLES`` iterations of
    all loops at once; one that depends on data goes both ways half the time. A loop without known length runs once.
    """
    taken = {block: constants.taken(block) for block in function.blocks if block in constants.reached}
    order = list(nx.dfs_postorder_nodes(nx.DiGraph(taken), function.entry))[::-1]
    innermost = innermost_loops(loops)
    # How a loop ends is told by its trips, not by the one iteration that a sample looks at.
    endings = {block: taken[block] for block in order if _ends_loop(function, innermost.get(block), block)}
    open_branches = any(len(taken[block]) == 2 for block in order if block not in endings)
    samples = SAMPLES if open_branches else 1
    total = dict.fromkeys(function.blocks, 0.0)
    generator = random.Random(0)  # noqa: S311 - the same for every program
    # Each loop's samples are spread evenly over it, and paired with those of the others at random.
    outer_first = sorted(loops, key=lambda loop: len(loop.body), reverse=True)
    spread = [generator.sample(range(samples), samples) for _ in loops]
    for sample in range(samples):
        places = [(turns[sample] + 0.5) / samples for turns in spread]
        constants.fix(_iteration(function, constants, outer_first, places) if open_branches else {})
        for block, runs in _one_pass(constants, loops, innermost, endings, order).items():
            total[block] += runs / samples
    constants.fix({})
    return total


def innermost_loops(loops: Sequence[Loop]) -> dict[str, Loop]:
    """Block -> the smallest loop around it."""
    table: dict[str, Loop] = {}
    for loop in sorted(loops, key=lambda loop: len(loop.body), reverse=True):
        table.update(dict.fromkeys(loop.body, loop))
    return table


def _iteration(
    function: Function, constants: Constants, outer_first: list[Loop], places: list[float]
) -> dict[str, int]:
    """Counters in one iteration of every loop: that at its of ``places``, from 0 to 1."""
    values: dict[str, int] = {}
    for loop, place in zip(outer_first, places, strict=True):
        turn = int(place * max(1.0, loop.trips))
        constants.fix(values)  # an inner loop may start where an outer one stands
        for counter in loop.counters:
            start = constants.at_most(counter.start) if counter.start else 0
            if start is not None:
                values[counter.name] = start + counter.step * turn
        for line in function.blocks[loop.header]:
            if match := _FIRST_THEN_OTHER.match(line):
                first, other = (match[2], match[4]) if match[3] not in loop.body else (match[4], match[2])
                values[match[1]] = int((first if turn == 0 else other) == "true")
    return values


def _one_pass(
    constants: Constants,
    loops: Sequence[Loop],
    innermost: Mapping[str, Loop],
    endings: Mapping[str, list[str]],
    order: list[str],
) -> dict[str, float]:
    trips = {loop.header: max(1.0, loop.trips) for loop in loops}
    place = {block: i for i, block in enumerate(order)}
    inflow = dict.fromkeys(order, 0.0)
    inflow[order[0]] = 1.0
    runs: dict[str, float] = {}
    for block in order:
        runs[block] = inflow[block] * trips.get(block, 1.0)
        loop = innermost[block] if block in endings else None
        targets = endings[block] if loop else constants.taken(block)
        passed = shares(targets, loop.body if loop else None, max(1.0, loop.trips) if loop else 1.0)
        for target, share in zip(targets, passed, strict=True):
            if place.get(target, -1) > place[block]:  # the back edge of a loop is in its trips already
                inflow[target] += runs[block] * share
    return runs


def _ends_loop(function: Function, loop: Loop | None, block: str) -> bool:
    """True for a branch that ends its loop or goes on."""
    if loop is None or not BRANCH.match(function.blocks[block][-1]):
        return False
    inside = [target in loop.body for target in function.successors[block]]
    return any(inside) and not all(inside)
