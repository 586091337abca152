"""Runs of a model on tensors without values, in which it takes the ways that it takes while it is exported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def as_exported(without_values: Any) -> Iterator[None]:
    """Let a model run on tensors without values as ``torch.export`` runs it.

    Some operators have shapes for exports only: transformers calls ``grouped_mm`` on experts, whose shapes PyTorch 2.13
    knows in bfloat16 alone, but an operator of its own while a model is exported.

    Args:
        without_values: the ``FakeTensorMode`` of the model's parameters and inputs.
    """
    from torch._export.utils import _compiling_state_context

    with without_values, _compiling_state_context():
        yield
