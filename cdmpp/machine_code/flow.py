"""How often each basic block runs: constants decide what they can, samples of the loop counters decide the rest."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import networkx as nx

from cdmpp.machine_code.block_graph import runs_of_blocks
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
    endings = {
        block: targets
        for block, targets in taken.items()
        if (loop := innermost.get(block)) and len({target in loop.body for target in targets}) == 2
        if BRANCH.match(function.blocks[block][-1])
    }
    bodies, trips = {x.header: x.body for x in loops}, {x.header: max(1.0, x.trips) for x in loops}

    def ways(block: str) -> tuple[Sequence[str], str | None]:
        return (endings[block], innermost[block].header) if block in endings else (constants.taken(block), None)

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
        for block, runs in runs_of_blocks(order, bodies, trips, ways).items():
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
