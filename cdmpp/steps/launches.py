"""Launches: what one rank exchanges in a step, as arrays over its exchanges, at several numbers of ranks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.exchange import Exchange

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Launches:
    """Exchanges in the order in which the rank launches them. Numbers of ranks change nothing but their bytes."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Kinds of exchanges with the degrees along which ranks take part, as ``Exchange`` has them; each once."""
    group: IntArray
    """Place in ``groups`` of each exchange."""
    after: IntArray
    """Place of the op that launches each; ``START``: from the start on."""
    waits: tuple[IntArray, IntArray]
    """Places of ops that wait, next to those that wait for all, and the number of the exchange for which each does."""
    follows: NDArray[np.bool_]
    """True if an exchange also waits for the one before it, whatever group that is of."""
    bytes: IntArray
    """Bytes of each; a column a number of ranks."""

    @classmethod
    def of(cls, exchanges: Sequence[Exchange], sizes: IntArray | int = 1) -> Launches:
        """Read those of rank 0.

        Args:
            exchanges: of a step, in order.
            sizes: bytes of each, a column a number of ranks, or for how many numbers of ranks they are as given.
        """
        if isinstance(sizes, int):
            sizes = np.repeat(np.array([[one.bytes] for one in exchanges], np.int64).reshape(-1, 1), sizes, axis=1)
        groups = dict[tuple[str, tuple[str, ...]], int]()
        group = [groups.setdefault((one.kind, one.along), len(groups)) for one in exchanges]
        waits = [(place, number) for number, one in enumerate(exchanges) for place in one.before.get(0, ())]
        places, numbers = np.array(waits, np.int64).reshape(-1, 2).T
        after = np.array([one.after[0] for one in exchanges], np.int64)
        follows = np.array([one.follows for one in exchanges], np.bool_)
        return cls(tuple(groups), np.array(group, np.int64), after, (places, numbers), follows, sizes)

    def between(self, along: tuple[str, ...]) -> Launches:
        """Return these, where ranks along the degrees ``along`` take part in what all did."""
        return replace(self, groups=tuple((kind, own or along) for kind, own in self.groups))

    @classmethod
    def joined(cls, each: Sequence[Launches], columns: int) -> Launches:
        """Return exchanges of several lists, in the order of their launches; of one op those of earlier lists first.

        Args:
            each: all with ``columns`` numbers of ranks.
            columns: as many.
        """
        if not each:
            return cls.of((), columns)
        groups = tuple(dict.fromkeys(one for own in each for one in own.groups))
        numbers = [np.array([groups.index(one) for one in own.groups], np.int64)[own.group] for own in each]
        starts = np.cumsum([0, *(len(own.after) for own in each)])
        after = np.concatenate([own.after for own in each])
        order = np.argsort(after, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        waits = np.concatenate([own.waits[0] for own in each])
        waited = np.concatenate([own.waits[1] + start for own, start in zip(each, starts, strict=False)])
        return cls(
            groups, np.concatenate(numbers)[order], after[order], (waits, places[waited]),
            np.concatenate([own.follows for own in each])[order], np.concatenate([own.bytes for own in each])[order],
        )  # fmt: skip

    def then(self, kind: str, after: int | Sequence[int], sizes: IntArray) -> Launches:
        """Return these, followed by exchanges of all ranks for which nothing waits.

        Args:
            kind: as ``Exchange`` has it.
            after: place of the op that launches each, or all of them.
            sizes: bytes of each, a column a number of ranks.
        """
        count = len(sizes)
        if not count:
            return self
        groups = tuple(dict.fromkeys((*self.groups, (kind, ()))))
        return Launches(
            groups,
            np.concatenate([self.group, np.full(count, groups.index((kind, ())))]),
            np.concatenate([self.after, np.full(count, after)]),
            self.waits,
            np.concatenate([self.follows, np.zeros(count, np.bool_)]),
            np.concatenate([self.bytes, sizes]),
        )
