"""Kept tensors: what autograd keeps of a forward pass, told while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told_of_kept(tell: Callable[[Any], None]) -> Iterator[None]:
    """Tell of each tensor that autograd keeps for a backward pass in this block.

    Autograd holds its hooks as long as the graph, out of sight of the garbage collector: a hook that led to the tensors
    of the graph would keep both for ever. So it leads nowhere after the block.
    """
    import torch

    tellers = [tell]

    def pack(tensor: Any) -> Any:
        tellers[0](tensor)
        return tensor.detach()  # a result with its graph would hold that and itself

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            yield
    finally:
        tellers.clear()
