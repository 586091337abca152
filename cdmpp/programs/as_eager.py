"""What is otherwise in a run that nobody exports, while a network is exported for the eager runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cdmpp.programs.cells import cells_as_on
from cdmpp.programs.eager_masks import eager_masks
from cdmpp.programs.experts import experts_as_eager
from cdmpp.programs.packed import packed_as_padded
from cdmpp.programs.routing import experts_found
from cdmpp.programs.selections import regions_pooled, selections_kept


class Noted(NamedTuple):
    """This was seen during an export."""

    told: dict[str, None]
    """What is taken for something else, a sentence each."""
    decided: set[str]
    """Which of ``imbalance`` and ``boxes`` decided what runs."""


@contextmanager
def as_eager(imbalance: float = 1.0, boxes: int | None = None, kind: str = "") -> Iterator[Noted]:
    """Export masks, experts, cells and packed sequences as they run; yields what is noted meanwhile.

    Args:
        imbalance: tokens of the busiest expert over the mean.
        boxes: elements that each selection by value keeps; None: none is read.
        kind: of the device, ``cpu``, or any other as a GPU.
    """
    decided: set[str] = set()
    with (
        eager_masks(),
        experts_as_eager(imbalance, decided),
        selections_kept(boxes, decided),
        regions_pooled(),
        cells_as_on(kind),
        packed_as_padded() as told,
        experts_found(imbalance, decided, told),
    ):
        yield Noted(told, decided)
