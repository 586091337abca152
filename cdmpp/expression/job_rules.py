"""Job rules: what the recognised counts of a job keep, such as no more nodes than GPUs.

A rule is known of the meanings of columns, and holds for a table if all its runs keep it: where parameter servers have
nodes of their own, there may be more nodes than GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.columns import role_of

Floats = npt.NDArray[np.float64]
_NEAR = 1e-6
_AT_MOST: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nodes", ("gpus",)), ("gpus_per_node", ("gpus",)), ("gpus", ("gpus_per_node", "nodes")), ("tp", ("gpus",)),
    ("dp", ("gpus",)), ("pp", ("gpus",)), ("chunks", ("batch",)), ("chunks", ("local_batch",)),
    ("micro_batch", ("batch",)), ("micro_batch", ("local_batch",)), ("local_batch", ("batch",)), ("dp", ("batch",)),
)  # fmt: skip
"""A role that is never more than the product of others."""
_EQUAL: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("gpus", ("tp", "dp", "pp"), ()), ("gpus", ("tp", "dp"), ("pp",)), ("gpus", ("dp", "pp"), ("tp",)),
    ("batch", ("gpus", "local_batch"), ("tp", "pp", "chunks")), ("batch", ("dp", "local_batch"), ("chunks",)),
    ("batch", ("dp", "micro_batch", "chunks"), ()), ("local_batch", ("micro_batch", "chunks"), ()),
)  # fmt: skip
"""A role that is the product of others, where there is no column of some more."""
_Rule = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class JobRules:
    """The rules that all runs of a table keep."""

    names: Mapping[str, str]
    """Role -> name of the column."""
    at_most: tuple[_Rule, ...]
    equal: tuple[_Rule, ...]

    @classmethod
    def of(cls, columns: Mapping[str, Floats]) -> JobRules:
        """Find the rules that the rows of these columns keep."""
        names = {role_of(name).name: name for name in columns if role_of(name).name}
        none = cls(names, (), ())
        equal = [(role, others) for role, others, unless in _EQUAL if not set(unless) & set(names)]
        found = [
            tuple(rule for rule in rules if {rule[0], *rule[1]} <= set(names) and not is_broken(rule, columns).any())
            for rules, is_broken in ((_AT_MOST, none._is_more), (equal, none._is_other))
        ]
        return cls(names, *found)

    def broken_by(self, columns: Mapping[str, Floats], *, is_whole: bool = True) -> tuple[int, str] | None:
        """Return the place of the first row that breaks a rule, and what is wrong with it; None if none does.

        Args:
            columns: name -> values, shape ``(rows,)``.
            is_whole: counts must be whole numbers.
        """
        for name in columns if is_whole else ():
            values = columns[name]
            if role_of(name).is_whole and (odd := np.flatnonzero(values != np.round(values))).size:
                return int(odd[0]), f"{name} is {values[odd[0]]:g}: expected a whole number"
        for rules, is_broken, how in ((self.equal, self._is_other, "is"), (self.at_most, self._is_more, "is at most")):
            for rule in rules:
                if (places := np.flatnonzero(is_broken(rule, columns))).size:
                    return int(places[0]), self._told(rule, columns, int(places[0]), how)
        return None

    def _is_more(self, rule: _Rule, columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
        return columns[self.names[rule[0]]] > self._product(rule[1], columns) * (1 + _NEAR)

    def _is_other(self, rule: _Rule, columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
        product = self._product(rule[1], columns)
        return np.abs(columns[self.names[rule[0]]] - product) > _NEAR * product

    def _product(self, roles: tuple[str, ...], columns: Mapping[str, Floats]) -> Floats:
        return np.prod([columns[self.names[role]] for role in roles], axis=0)

    def _told(self, rule: _Rule, columns: Mapping[str, Floats], place: int, how: str) -> str:
        names = [self.names[role] for role in (rule[0], *rule[1])]
        given = ", ".join(f"{name}={columns[name][place]:g}" for name in names)
        return f"{given} contradict each other: {names[0]} {how} {' * '.join(names[1:])} in all runs"
