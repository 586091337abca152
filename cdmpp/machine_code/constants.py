"""Integers of a function that are known before it runs, and the blocks that are therefore never reached."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

import networkx as nx

from cdmpp.machine_code.ir import BRANCH, NAME, VALUE, Function

_GIVEN = {"true": 1, "false": 0, "%task_id": 0, "%num_task": 1}
"""TVM's parallel loops hand each task its share: counted is the whole loop, as one task would run it."""
_OVERLAP = "%found.conflict"
"""LLVM's name for the outcome of its check whether two buffers overlap: those of TVM's arguments do not."""
_PHI = re.compile(r"phi i\d+ (.*)")
_INCOMING = re.compile(rf'\[ ({VALUE}), %("?[\w.$-]+"?) \]')
_EXTREME = re.compile(rf".*?@llvm\.([su](?:min|max))\.i\d+\(i(\d+) ({VALUE}), i\d+ ({VALUE})\)")
_SELECT = re.compile(rf"select i1 ({VALUE}), i\d+ ({VALUE}), i\d+ ({VALUE})$")
_NUMBER = re.compile(r"-?\d+")

_OPERATIONS: dict[str, Callable[[int, int], int | None]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "sdiv": lambda a, b: _toward_zero(a, b),
    "udiv": lambda a, b: a // b if a >= 0 and b > 0 else None,
    "srem": lambda a, b: None if b == 0 else a - b * (_toward_zero(a, b) or 0),
    "urem": lambda a, b: a % b if a >= 0 and b > 0 else None,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": lambda a, b: a << b if 0 <= b < 64 else None,
    "lshr": lambda a, b: a >> b if a >= 0 and 0 <= b < 64 else None,
    "ashr": lambda a, b: a >> b if 0 <= b < 64 else None,
}


def _toward_zero(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class Constants:
    """Evaluates SSA values of ``function``; ``reached`` are the blocks that some run may enter."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._values: dict[tuple[str, bool], int | None] = {}
        self._fixed = _GIVEN
        self.reached: set[str] = set(function.blocks)
        # Twice: what is never reached may settle a phi, and that a further branch.
        for _ in range(2):
            self._values.clear()
            edges = nx.generic_bfs_edges(function.graph, function.entry, self.taken)
            self.reached = {function.entry, *(block for _, block in edges)}
        self._values.clear()

    def fix(self, values: Mapping[str, int]) -> None:
        """Take these SSA values as given until the next call: one iteration of the loops whose counters they are."""
        self._fixed = {**_GIVEN, **values}
        self._values.clear()

    def exact(self, value: str) -> int | None:
        """The number that ``value`` always is; None where it depends on the run."""
        return self._evaluate(value, False)

    def at_most(self, value: str) -> int | None:
        """As ``exact``, but a tile at an edge, ``min(16, n - i)``, counts as a whole one."""
        return self._evaluate(value, True)

    def taken(self, block: str) -> list[str]:
        """Blocks that may follow ``block``."""
        targets = self.function.successors[block]
        if len(targets) == 2 and (branch := BRANCH.match(self.function.blocks[block][-1])):
            condition = self.exact(branch[1])
            if condition is not None:
                return [branch[2 if condition else 3].strip('"')]
        return targets

    def _evaluate(self, value: str, at_most: bool) -> int | None:
        if value in self._fixed:
            return self._fixed[value]
        if value.startswith(_OVERLAP):
            return 0
        if not value.startswith("%"):
            return int(value) if _NUMBER.fullmatch(value) else None
        key = (value, at_most)
        if key not in self._values:
            self._values[key] = None  # a value that leads back to itself changes from one iteration to the next
            definition = self.function.definitions.get(value)
            self._values[key] = self._compute(definition.text, definition.block, at_most) if definition else None
        return self._values[key]

    def _compute(self, text: str, block: str, at_most: bool) -> int | None:
        for pattern, operands, compute in _FORMS:
            if match := pattern.match(text):
                numbers = [self._evaluate(match[i], at_most) for i in operands]
                return None if None in numbers else compute(match, *numbers)
        if match := _EXTREME.match(text):
            bounds = [number for i in (3, 4) if (number := self._evaluate(match[i], at_most)) is not None]
            smallest = match[1].endswith("min")
            if len(bounds) == 2 and (match[1][0] == "s" or min(bounds) >= 0):
                return min(bounds) if smallest else max(bounds)
            return bounds[0] if at_most and bounds and smallest else None
        if match := _SELECT.match(text):
            chosen = self._evaluate(match[1], at_most)
            return None if chosen is None else self._evaluate(match[2 if chosen else 3], at_most)
        match = _PHI.match(text)
        return self._phi(match[1], block, at_most) if match else None

    def _phi(self, incoming: str, block: str, at_most: bool) -> int | None:
        numbers = set()
        for value, source in _INCOMING.findall(incoming):
            name = source.strip('"')
            if name in self.reached and block in self.taken(name):
                numbers.add(self._evaluate(value, at_most))
        return numbers.pop() if len(numbers) == 1 else None


def _cast(match: re.Match[str], number: int) -> int | None:
    unsigned = match[1] == "zext" and number < 0
    return _wrapped(number & (1 << int(match[2])) - 1 if unsigned else number, int(match[4]))


def _compare(match: re.Match[str], left: int, right: int) -> int | None:
    if match[1][0] == "u" and min(left, right) < 0:
        return None
    return int(getattr(operator, match[1][-2:])(left, right))


def _wrapped(number: int | None, bits: int) -> int | None:
    """As a signed integer of so many bits; single bits stay 0 and 1."""
    if number is None:
        return None
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number


_FORMS: tuple[tuple[re.Pattern[str], tuple[int, ...], Callable[..., int | None]], ...] = (
    (
        re.compile(rf"({'|'.join(_OPERATIONS)})(?: \w+)* i(\d+) ({VALUE}), ({VALUE})$"),
        (3, 4),
        lambda match, left, right: _wrapped(_OPERATIONS[match[1]](left, right), int(match[2])),
    ),
    (re.compile(rf"(zext|sext|trunc)(?: \w+)* i(\d+) ({VALUE}) to i(\d+)$"), (3,), _cast),
    (re.compile(rf"icmp(?: samesign)? (\w+) i(\d+) ({VALUE}), ({VALUE})$"), (3, 4), _compare),
    # Allocations succeed, and so do calls of the runtime.
    (re.compile(rf"icmp (eq|ne) ptr {NAME}, null$"), (), lambda match: int(match[1] == "ne")),
    (re.compile(r"(?:tail |musttail |notail )?call i32 (?!@llvm)"), (), lambda match: 0),
    (re.compile(rf"freeze i\d+ ({VALUE})$"), (1,), lambda match, number: number),
)
"""Instructions that are understood, their operands, and what they make of them."""
