"""Attention masks of transformers while a network is exported: made, or not, as in a run that nobody exports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cdmpp.programs.patch import patched

_AS_EAGER: dict[str, Callable[..., Any]] = {
    "is_torchdynamo_exporting": lambda: False,
    "find_packed_sequence_indices": lambda *_, **__: None,
}
"""Function of ``transformers.masking_utils`` -> what it says of whole sequences in a run that nobody exports."""


@contextmanager
def eager_masks() -> Iterator[None]:
    """Leave out masks that hide nothing, as transformers does not while exported; given ones are used.

    Positions are taken as those of one sequence a row: whether several are packed into it, no export can see.
    """
    masks = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        for name, function in _AS_EAGER.items():
            if hasattr(masks, name):
                stack.enter_context(patched(masks, name, function))
        yield
