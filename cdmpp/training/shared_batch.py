"""SharedBatch: the part of a batch that one of several processes computes, and means over the parts of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


def mean_of(values: Tensor) -> Tensor:
    """Return the mean (H,) of values (n, H) over its rows."""
    return values.mean(0)


@dataclass(frozen=True)
class SharedBatch:
    """A process computes every ``ranks``-th program of a batch, from its own rank on. Gradients are averaged after."""

    rank: int = 0
    ranks: int = 1
    gather: Callable[[Tensor], Tensor] | None = None
    """Values of a process -> (ranks, ...) those of all, through which gradients go."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of what all processes have, of any one shape."""
        return values if self.gather is None or self.ranks == 1 else self.gather(values).sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean (H,) over the rows of (n, H) of all processes, which may have unequally many."""
        if self.ranks == 1:
            return mean_of(values)
        return self.sum(values.sum(0)) / self.sum(values.new_tensor(float(len(values))))

    def part(self, rows: np.ndarray) -> np.ndarray:
        """Return those of the rows of a whole batch that this process computes."""
        return rows[self.rank :: self.ranks]
