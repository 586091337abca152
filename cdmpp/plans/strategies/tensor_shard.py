"""Shard: the axis along which ranks of tensor parallelism divide a value, and what operators on shapes make of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


class NotDivisibleError(Exception):
    """A value cannot stay divided through an operator."""

    def __init__(self, *blamed: Shard, pieces: Sequence[int] = ()) -> None:
        """Blame values that cannot be divided so.

        Args:
            blamed: the values.
            pieces: sizes of the pieces along the axis that would each have to be divided; empty: nothing helps.
        """
        super().__init__()
        self.origins = frozenset(one for shard in blamed for one in shard.origins)
        self.pieces = tuple(pieces)


@dataclass(frozen=True)
class Shard:
    """Each rank has a part of every block of an axis; blocks lie one behind the other.

    One block is what DTensor calls ``Shard(axis)``. A fused layer of queries, keys and values has three, so that each
    rank has some heads of each. Where the batch and the heads are one axis, there is a block for each example.
    """

    axis: int
    """Counted from 0."""
    blocks: tuple[int, ...]
    """Size of each block of the whole axis."""
    origins: frozenset[Any] = field(default=frozenset(), compare=False)
    """Nodes whose weights are divided so that the value is; empty: it is divided along the sequence."""

    multiple: int = 0
    """Parts are padded to the same multiple of this; 0: blocks are divided evenly."""

    @property
    def size(self) -> int:
        """Elements of the whole axis."""
        return sum(self.blocks)

    def on(self, axis: int, blocks: Sequence[int] | None = None) -> Shard:
        """Return the same division of another axis, or of other blocks."""
        return replace(self, axis=axis, blocks=self.blocks if blocks is None else tuple(blocks))

    def with_origins(self, other: Shard) -> Shard:
        """Return the same division, from the layers of another one too."""
        return replace(self, origins=self.origins | other.origins)

    def local(self, shape: Sequence[int], ranks: int) -> tuple[int, ...]:
        """Return the shape of one rank's part of a value of this shape."""
        own = list(map(int, shape))
        own[self.axis] = sum(self.local_blocks(ranks))
        return tuple(own)

    def local_blocks(self, ranks: int) -> tuple[int, ...]:
        """Return the size of one rank's part of each block."""
        if self.multiple:
            return tuple(-(-one // (self.multiple * ranks)) * self.multiple for one in self.blocks)
        return tuple(one // ranks for one in self.blocks)

    def pieces(self, sizes: Sequence[int]) -> list[Shard]:
        """Return the pieces of these sizes into which the axis falls; ``NotDivisibleError`` where a block is cut."""
        found, blocks = list[Shard](), list(self.blocks)
        for size in sizes:
            own = list[int]()
            while blocks and sum(own) < size:
                own.append(blocks.pop(0))
            if sum(own) != size:
                raise NotDivisibleError(self, pieces=sizes if len(self.blocks) == 1 else ())
            found.append(self.on(self.axis, own))
        return found


def viewed(shard: Shard, old: Sequence[int], new: Sequence[int]) -> Shard:
    """Return how a value is divided behind a view of shape ``new``, if it was divided before, of shape ``old``.

    ``NotDivisibleError``: a rank's part is then no part of the view.
    """
    for before, after in _groups(old, new):
        if shard.axis not in before:
            continue
        place = before.index(shard.axis)
        outer = math.prod(old[one] for one in before[:place])
        inner = math.prod(old[one] for one in before[place + 1 :])
        blocks = tuple(one * inner for one in shard.blocks) * outer
        large = [one for one in after if new[one] > 1]
        if len(large) == 1:
            return shard.on(large[0], blocks)
        if len(set(blocks)) > 1:
            raise NotDivisibleError(shard)
        parts = len(blocks)
        for one in large:
            if parts % new[one] == 0:
                parts //= new[one]
            elif new[one] % parts == 0:
                return shard.on(one, (new[one] // parts,) * parts)
            else:
                break
    raise NotDivisibleError(shard)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of both shapes that have as many elements, from the first on."""
    i = j = 0
    while i < len(old) and j < len(new):
        before, after, many, others = [i], [j], old[i], new[j]
        while many != others:
            if many < others:
                i += 1
                before.append(i)
                many *= old[i]
            else:
                j += 1
                after.append(j)
                others *= new[j]
        i, j = i + 1, j + 1
        yield before, after
