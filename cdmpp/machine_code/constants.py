"""Integers of a function that are known before it runs, and the blocks that are therefore never reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cdmpp.machine_code.ir import Function

_NAME = r'%"?[\w.$-]+"?'
_VALUE = rf"(?:{_NAME}|-?\d+|true|false)"
_BINARY = re.compile(
    rf"(add|sub|mul|sdiv|udiv|srem|urem|and|or|xor|shl|lshr|ashr)(?: \w+)* i(\d+) ({_VALUE}), ({_VALUE})$"
)
_CAST = re.compile(rf"(zext|sext|trunc)(?: \w+)* i(\d+) ({_VALUE}) to i(\d+)$")
_EXTREME = re.compile(rf"@llvm\.([su](?:min|max))\.i\d+\(i(\d+) ({_VALUE}), i\d+ ({_VALUE})\)")
_COMPARE = re.compile(rf"icmp(?: samesign)? (\w+) i(\d+) ({_VALUE}), ({_VALUE})$")
_SELECT = re.compile(rf"select i1 ({_VALUE}), i\d+ ({_VALUE}), i\d+ ({_VALUE})$")
_FREEZE = re.compile(rf"freeze i\d+ ({_VALUE})$")
_PHI = re.compile(r"phi i\d+ (.*)")
_INCOMING = re.compile(rf'\[ ({_VALUE}), %("?[\w.$-]+"?) \]')
BRANCH = re.compile(rf'br i1 ({_VALUE}), label %("?[\w.$-]+"?), label %("?[\w.$-]+"?)')
_NULL = re.compile(rf"icmp (eq|ne) ptr {_NAME}, null$")
_STATUS = re.compile(r"(?:tail |musttail |notail )?call i32 (?!@llvm)")
_ONE_TASK = {"%task_id": 0, "%num_task": 1}
"""TVM's parallel loops hand each task its share: counted is the whole loop, as one task would run it."""
_LITERALS = {"true": 1, "false": 0}
_OVERLAP = "%found.conflict"
"""LLVM's name for the outcome of its check whether two buffers overlap: those of TVM's arguments do not."""

_OPERATIONS: dict[str, Callable[[int, int], int | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "sdiv": lambda a, b: _toward_zero(a, b),
    "udiv": lambda a, b: _toward_zero(a, b) if a >= 0 and b > 0 else None,
    "srem": lambda a, b: None if b == 0 else a - b * (_toward_zero(a, b) or 0),
    "urem": lambda a, b: a % b if a >= 0 and b > 0 else None,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b if 0 <= b < 64 else None,
    "lshr": lambda a, b: a >> b if a >= 0 and 0 <= b < 64 else None,
    "ashr": lambda a, b: a >> b if 0 <= b < 64 else None,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _toward_zero(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class Constants:
    """Evaluates SSA values of ``function``; ``reached`` are the blocks that some run may enter."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._known: dict[tuple[str, bool], int | None] = {}
        self._fixed: dict[str, int] = {}
        self.reached: set[str] = set(function.blocks)
        # Twice: what is never reached may settle a phi, and that a further branch.
        for _ in range(2):
            self._known.clear()
            self.reached = self._reach()
        self._known.clear()

    def fix(self, values: Mapping[str, int]) -> None:
        """Take these SSA values as given until the next call: one iteration of the loops whose counters they are."""
        self._fixed = dict(values)
        self._known.clear()

    def exact(self, value: str) -> int | None:
        """The number that ``value`` always is; None where it depends on the run."""
        return self._evaluate(value, False)

    def at_most(self, value: str) -> int | None:
        """As ``exact``, but a tile at an edge, ``min(16, n - i)``, counts as a whole one."""
        return self._evaluate(value, True)

    def _reach(self) -> set[str]:
        entry = next(iter(self.function.blocks))
        reached, work = {entry}, [entry]
        while work:
            block = work.pop()
            for target in self.taken(block):
                if target not in reached:
                    reached.add(target)
                    work.append(target)
        return reached

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
        if value in _ONE_TASK:
            return _ONE_TASK[value]
        if value in _LITERALS:
            return _LITERALS[value]
        if value.startswith(_OVERLAP):
            return 0
        if not value.startswith("%"):
            return int(value) if re.fullmatch(r"-?\d+", value) else None
        key = (value, at_most)
        if key not in self._known:
            self._known[key] = None  # a value that leads back to itself changes from one iteration to the next
            definition = self.function.definitions.get(value)
            self._known[key] = self._compute(definition.text, definition.block, at_most) if definition else None
        return self._known[key]

    def _compute(self, text: str, block: str, at_most: bool) -> int | None:
        def operand(name: str) -> int | None:
            return self._evaluate(name, at_most)

        if match := _BINARY.match(text):
            return _binary(match, operand)
        if match := _CAST.match(text):
            return _cast(match, operand)
        if match := _EXTREME.search(text):
            return _extreme(match, operand, at_most)
        if match := _COMPARE.match(text):
            return _compare(match, operand)
        if match := _NULL.match(text):  # allocations succeed ...
            return int(match[1] == "ne")
        if _STATUS.match(text):  # ... and so do calls of the runtime
            return 0
        if match := _SELECT.match(text):
            chosen = operand(match[1])
            return None if chosen is None else operand(match[2 if chosen else 3])
        if match := _FREEZE.match(text):
            return operand(match[1])
        if match := _PHI.match(text):
            return self._phi(match[1], block, at_most)
        return None

    def _phi(self, incoming: str, block: str, at_most: bool) -> int | None:
        numbers = set()
        for value, source in _INCOMING.findall(incoming):
            name = source.strip('"')
            if name in self.reached and block in self.taken(name):
                numbers.add(self._evaluate(value, at_most))
        return numbers.pop() if len(numbers) == 1 else None


_Operand = Callable[[str], int | None]


def _binary(match: re.Match[str], operand: _Operand) -> int | None:
    left, right = operand(match[3]), operand(match[4])
    if left is None or right is None:
        return None
    result = _OPERATIONS[match[1]](left, right)
    return None if result is None else _wrapped(result, int(match[2]))


def _cast(match: re.Match[str], operand: _Operand) -> int | None:
    inner = operand(match[3])
    if inner is None:
        return None
    if match[1] == "zext" and inner < 0:
        inner &= (1 << int(match[2])) - 1
    return _wrapped(inner, int(match[4]))


def _extreme(match: re.Match[str], operand: _Operand, at_most: bool) -> int | None:
    known = [number for name in (match[3], match[4]) if (number := operand(name)) is not None]
    smallest = match[1].endswith("min")
    if len(known) == 2 and (match[1][0] == "s" or min(known) >= 0):
        return min(known) if smallest else max(known)
    return known[0] if at_most and known and smallest else None


def _compare(match: re.Match[str], operand: _Operand) -> int | None:
    left, right = operand(match[3]), operand(match[4])
    if left is None or right is None or (match[1][0] == "u" and min(left, right) < 0):
        return None
    return int(_COMPARISONS[match[1][-2:]](left, right))


def _wrapped(number: int, bits: int) -> int:
    """As a signed integer of so many bits; single bits stay 0 and 1."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number
