"""How often each basic block runs: constants decide what they can, samples of the loop counters decide the rest."""

from __future__ import annotations

import random
import re

from cdmpp.machine_code.constants import BRANCH, Constants
from cdmpp.machine_code.ir import Function
from cdmpp.machine_code.loops import Loop

SAMPLES = 32
_FIRST_THEN_OTHER = re.compile(r'(%"?[\w.$-]+"?) = phi i1 \[ (true|false), %"?([\w.$-]+)"? \], \[ (true|false), ')


def frequencies(function: Function, constants: Constants, loops: list[Loop]) -> dict[str, float]:
    """Block -> runs per call of the function.

    A branch inside a loop nest, such as that of a padded convolution, is followed for ``SAMPLES`` iterations of
    all loops at once; one that depends on data goes both ways half the time. A loop without known length runs once.
    """
    order = _order(function, constants)
    innermost = innermost_loops(loops)
    # How a loop ends is told by its trips, not by the one iteration that a sample looks at.
    endings = {b: constants.taken(b) for b in order if _leaves(function, innermost.get(b), b)}
    open_branches = [b for b in order if len(constants.taken(b)) == 2 and b not in endings]
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


def innermost_loops(loops: list[Loop]) -> dict[str, Loop]:
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
    loops: list[Loop],
    innermost: dict[str, Loop],
    endings: dict[str, list[str]],
    order: list[str],
) -> dict[str, float]:
    heads = {loop.header: loop for loop in loops}
    place = {block: i for i, block in enumerate(order)}
    inflow = dict.fromkeys(order, 0.0)
    inflow[order[0]] = 1.0
    runs: dict[str, float] = {}
    for block in order:
        loop = heads.get(block)
        runs[block] = inflow[block] * (max(1.0, loop.trips) if loop else 1.0)
        ending = endings.get(block)
        around = innermost.get(block)
        shares = _ending_shares(around, ending) if ending and around else _even(constants.taken(block))
        for target, share in shares:
            if place.get(target, -1) > place[block]:  # the way back into a loop is in its trips already
                inflow[target] += runs[block] * share
    return runs


def _ending_shares(loop: Loop, targets: list[str]) -> list[tuple[str, float]]:
    if len(targets) == 1:
        return [(targets[0], 1.0)]
    leaving = 1.0 / max(1.0, loop.trips)
    return [(target, 1.0 - leaving if target in loop.body else leaving) for target in targets]


def _even(targets: list[str]) -> list[tuple[str, float]]:
    return [(target, 1.0 / len(targets)) for target in targets]


def _leaves(function: Function, loop: Loop | None, block: str) -> bool:
    """True for a branch that ends its loop or goes on."""
    if loop is None or not BRANCH.match(function.blocks[block][-1]):
        return False
    inside = [target in loop.body for target in function.successors[block]]
    return any(inside) and not all(inside)


def _order(function: Function, constants: Constants) -> list[str]:
    """Reached blocks, each after all from which it is entered, ways back into loops apart."""
    entry = next(iter(function.blocks))
    seen, finished, stack = {entry}, [], [(entry, iter(constants.taken(entry)))]
    while stack:
        block, targets = stack[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(constants.taken(target))))
                break
        else:
            finished.append(block)
            stack.pop()
    return finished[::-1]
