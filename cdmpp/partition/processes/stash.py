"""Stash: what a stage keeps of each micro-batch between its forward and its backward pass, and its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True)
class Kept:
    """A micro-batch under way."""

    received: torch.Tensor
    """The tensor that its forward pass began with."""
    end: Any
    """Where its backward pass begins; None: nothing of the stage needs a gradient."""
    version: int
    """Version of the weights of its forward pass."""
    bytes: int


class Stash:
    """The micro-batches under way of one stage."""

    def __init__(self, shared: Iterable[torch.Tensor]) -> None:
        """Prepare; ``shared``: parameters and buffers, which belong to no micro-batch."""
        self._shared = {one.untyped_storage().data_ptr() for one in shared}
        self._kept: dict[int, Kept] = {}
        self._bytes = 0
        self.peak_bytes = self.peak_count = 0

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    @contextmanager
    def counting(self, received: torch.Tensor) -> Iterator[dict[int, int]]:
        """Count what autograd saves of a forward pass: address of a storage -> its bytes, each once."""
        found = dict[int, int]()

        def pack(saved: torch.Tensor) -> torch.Tensor:
            self._add(found, saved)
            return saved.detach()  # the tensor itself may be a result of the node that saves it: a circle

        self._add(found, received)
        with saved_tensors_hooks(pack, lambda saved: saved):
            yield found

    def _add(self, found: dict[int, int], one: torch.Tensor) -> None:
        storage = one.untyped_storage()
        if storage.data_ptr() not in self._shared:
            found[storage.data_ptr()] = storage.nbytes()

    def put(self, number: int, kept: Kept) -> None:
        """Keep a micro-batch."""
        self._kept[number] = kept
        self._bytes += kept.bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        self.peak_count = max(self.peak_count, len(self._kept))

    def take(self, number: int) -> Kept:
        """Give a micro-batch back for its backward pass; its bytes count until ``free``."""
        return self._kept[number]

    def free(self, number: int) -> None:
        """Forget a micro-batch after its backward pass."""
        self._bytes -= self._kept.pop(number).bytes
