"""What is otherwise in a run that nobody exports, while a network is exported for the eager runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdmpp.programs.eager_masks import eager_masks
from cdmpp.programs.experts import experts_as_eager
from cdmpp.programs.packed import packed_as_padded
from cdmpp.programs.selections import regions_pooled, selections_kept


@contextmanager
def as_eager(imbalance: float = 1.0, boxes: int | None = None) -> Iterator[dict[str, None]]:
    """Export masks, experts and packed sequences as they run; yields what is taken for something else, a sentence each.

    Args:
        imbalance: tokens of the busiest expert over the mean.
        boxes: elements that each selection by value keeps; None: none is read.
    """
    with (
        eager_masks(),
        experts_as_eager(imbalance),
        selections_kept(boxes),
        regions_pooled(),
        packed_as_padded() as told,
    ):
        yield told
