"""Attention masks of transformers while a network is exported: made, or not, as in a run that nobody exports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def eager_masks() -> Iterator[None]:
    """Masks that hide nothing are left out, which transformers does not do while exported; given ones are used."""
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_torchdynamo_exporting", None)
    if masks is None or asked is None:
        yield
        return
    masks.is_torchdynamo_exporting = lambda: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        masks.is_torchdynamo_exporting = asked  # type: ignore[attr-defined]
