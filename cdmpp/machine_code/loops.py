"""Natural loops of a function and their constant trip counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.ir import BRANCH, NAME, Function

_PHI = re.compile(rf"({NAME}) = phi (?:i\d+|ptr) (.*)")
_INCOMING = re.compile(r'\[ ([^,]+), %("?[\w.$-]+"?) \]')
_STEP = re.compile(rf"(add|sub)[\w ]* i\d+ ({NAME}), (-?\d+)$")
_CAST = re.compile(rf"(?:trunc|zext|sext)[\w ]* i\d+ ({NAME}) to")
_COMPARE = re.compile(rf"icmp (?:samesign )?(\w+) i\d+ ({NAME}|-?\d+), ({NAME}|-?\d+)$")
_RUNS_TWICE = re.compile(r'phi i1 \[ true, %"?[\w.$-]+"? \], \[ false, %"?[\w.$-]+"? \]')
_OFFSET = re.compile(rf"(add|sub|or disjoint)[\w ]* i\d+ ({NAME}), (-?\d+)$")
_MAX_CASTS = 4


class Counter(NamedTuple):
    """An integer that every iteration changes by the same amount."""

    start: str | None
    step: int
    name: str
    after: str
    """The value after the step."""


@dataclass(frozen=True)
class Loop:
    """A natural loop."""

    header: str
    body: frozenset[str]
    """Names of its blocks, the header among them."""
    trips: float
    """Iterations each time it is entered; 0 where that is not a constant of the text."""
    counters: tuple[Counter, ...] = ()


def loops_of(function: Function, constants: Constants) -> list[Loop]:
    """Natural loops that are reached, with their trip counts."""
    reached = [(header, body) for header, body in function.natural_loops.items() if header in constants.reached]
    counters = [tuple(_counters(constants, *loop)) for loop in reached]
    return [Loop(*loop, _trips(constants, *loop, own), own) for loop, own in zip(reached, counters, strict=True)]


def _counters(constants: Constants, header: str, body: frozenset[str]) -> Iterator[Counter]:
    for line in constants.function.blocks[header]:
        if not (phi := _PHI.match(line)):
            continue
        incoming = [(value, block.strip('"')) for value, block in _INCOMING.findall(phi[2])]
        outside = [(value, block) for value, block in incoming if block not in body]
        entered = [value for value, block in outside if block in constants.reached and header in constants.taken(block)]
        start = next(iter(entered or [value for value, _ in outside]), None)
        after = next((value for value, block in incoming if block in body), "")
        step = _STEP.match(constants.function.text_of(after))
        if step and step[2] == phi[1] and int(step[3]):
            yield Counter(start, int(step[3]) * (1 if step[1] == "add" else -1), phi[1], after)


def _trips(constants: Constants, header: str, body: frozenset[str], counters: Sequence[Counter]) -> float:
    function, most = constants.function, 0.0
    for block in sorted(body):
        targets = function.successors[block]
        if len(targets) < 2 or all(target in body for target in targets):
            continue
        branch = BRANCH.match(function.blocks[block][-1])
        condition = function.text_of(branch[1]) if branch else ""
        if _RUNS_TWICE.match(condition):
            most = max(most, 2.0)
        elif compared := _COMPARE.match(condition):
            most = max(most, _from_compare(constants, counters, compared, header in targets))
    return most


def _from_compare(
    constants: Constants, counters: Sequence[Counter], compared: re.Match[str], at_the_end: bool
) -> float:
    """Iterations of a loop that is left by ``compared``; 0 where it does not compare a counter with a constant."""
    for value, bound in ((compared[2], compared[3]), (compared[3], compared[2])):
        counter, offset = _counter_behind(constants.function, counters, value)
        limit = constants.at_most(bound)
        if counter is None or limit is None:
            continue
        start = constants.at_most(counter.start) or 0 if counter.start else 0
        # An unrolled loop whose first iteration was taken out is left in the middle, between the counter and its step.
        steps = (limit - offset - start) / counter.step
        before = counter.after not in _uncast(constants.function, value)
        if compared[1] in ("eq", "ne"):
            return abs(steps + 1 if before else steps)
        if compared[1] in ("ult", "slt"):
            return abs(math.ceil(steps) + 1 if before and at_the_end else math.ceil(steps))
        return abs(steps)
    return 0.0


def _counter_behind(function: Function, counters: Sequence[Counter], value: str) -> tuple[Counter | None, int]:
    """The counter that ``value`` is cast from, and the constant that was added to it on the way (not its step)."""
    before = {counter.name: counter for counter in counters}
    either = {counter.after: counter for counter in counters} | before
    for name in _uncast(function, value):
        if name in either:
            return either[name], 0
        shifted = _OFFSET.match(function.text_of(name))
        if shifted and shifted[2] in before:
            return before[shifted[2]], int(shifted[3]) * (-1 if shifted[1] == "sub" else 1)
    return None, 0


def _uncast(function: Function, value: str) -> Iterator[str]:
    """``value``, what it was cast from, what that was cast from ..."""
    for _ in range(_MAX_CASTS):
        yield value
        cast = _CAST.match(function.text_of(value))
        if cast is None:
            return
        value = cast[1]
