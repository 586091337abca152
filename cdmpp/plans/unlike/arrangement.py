"""Arrangement: which device holds which stage of which replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations_with_replacement, product

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.mesh import Mesh

MOST = 48
"""Arrangements that are tried for each division of a job."""
_MOST_TRIED = 20_000
Column = tuple[str, ...]
"""The devices of the pipeline of a replica, stage after stage."""


@dataclass(frozen=True)
class Arrangement:
    """Replicas with the same devices stand next to each other."""

    columns: tuple[Column, ...]
    """Devices of each replica."""

    @cached_property
    def kinds(self) -> dict[Column, int]:
        """Map each different column to the number of replicas that have it, in their order."""
        return dict(Counter(self.columns))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices, each once, in the order of the replicas."""
        return tuple(dict.fromkeys(name for column in self.columns for name in column))

    def at(self, place: int) -> tuple[str, ...]:
        """Return the devices at one place along the pipeline, each once."""
        return tuple(dict.fromkeys(column[place] for column in self.columns))

    def of_ranks(self, degrees: ParallelDegrees) -> tuple[str, ...]:
        """Return the device of each rank of a job."""
        mesh = Mesh(degrees)
        return tuple(self.columns[mesh.replica(rank)][mesh.place(rank, "pp")] for rank in range(degrees.ranks))


def arrangements(counts: Mapping[str, int], degrees: ParallelDegrees) -> tuple[list[Arrangement], bool]:
    """List where ranks may stand; replicas that trade places make no difference.

    First comes that with one device a replica, then those with one device a stage, then others: ``MOST`` in all.

    Args:
        counts: device -> ranks on it.
        degrees: of the job; ranks that divide operators of one stage and replica stand on equal devices.

    Returns:
        Arrangements, and whether they are all that there are.
    """
    stages, replicas = degrees.pp, degrees.size("dp_replicate", "dp_shard")
    each = degrees.ranks // (stages * replicas)
    if any(count % each for count in counts.values()):
        return [], True
    cells = {name: count // each for name, count in counts.items()}
    found, is_all = dict[Arrangement, None](), True
    for one in chain(_like_replicas(cells, stages, replicas), _like_stages(cells, replicas)):
        found.setdefault(one)
        if len(found) == MOST:
            return list(found), False
    for number, other in enumerate(_mixed(cells, stages, replicas)):
        if len(found) == MOST or number == _MOST_TRIED:
            is_all = False
            break
        if other is not None:
            found.setdefault(other)
    return list(found), is_all


def _like_stages(cells: Mapping[str, int], replicas: int) -> Iterator[Arrangement]:
    """Every stage stands on one device."""
    if any(count % replicas for count in cells.values()):
        return
    for column in _orders({name: count // replicas for name, count in cells.items()}):
        yield Arrangement((column,) * replicas)


def _orders(left: Mapping[str, int]) -> Iterator[Column]:
    """All different orders of as many of each name, by the order of the names."""
    if not any(left.values()):
        yield ()
    for name, count in left.items():
        if count:
            for rest in _orders({**left, name: count - 1}):
                yield (name, *rest)


def _like_replicas(cells: Mapping[str, int], stages: int, replicas: int) -> Iterator[Arrangement]:
    """Every replica stands on one device."""
    if not any(count % stages for count in cells.values()) and replicas > 1:
        columns = ((name,) * stages for name, count in cells.items() for _ in range(count // stages))
        yield Arrangement(tuple(columns))


def _mixed(cells: Mapping[str, int], stages: int, replicas: int) -> Iterator[Arrangement | None]:
    """All choices of columns; None for one that takes other devices than there are."""
    if len(cells) ** stages > _MOST_TRIED:
        yield from (None for _ in range(_MOST_TRIED + 1))
        return
    for columns in combinations_with_replacement(product(cells, repeat=stages), replicas):
        taken = Counter(name for column in columns for name in column)
        yield Arrangement(columns) if taken == cells else None
