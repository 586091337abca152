"""Term: a product of powers of factors, and how the number of members of a group enters; or the larger of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SHAPES = ("log2", "share", "any", "others")
"""Functions of a count n that may enter beside its powers: log2(n), (n - 1) / n, 1 if n > 1 else 0, n - 1."""


def shape_values(shape: str, counts: Floats) -> Floats:
    """Return a shape of counts from 1 up, elementwise: 0 for one member, where there is nothing to exchange."""
    if shape == "log2":
        return np.log2(np.maximum(counts, 1.0))
    if shape == "share":
        return np.maximum(counts - 1.0, 0.0) / counts
    if shape == "any":
        return (counts > 1.0).astype(np.float64)
    return np.maximum(counts - 1.0, 0.0)


@dataclass(frozen=True)
class Product:
    """A product of powers, times the shape of one factor."""

    powers: Mapping[str, float]
    """Name of a factor -> its exponent, none of them 0."""
    shape: tuple[str, str] | None = None
    """A pair of one of ``SHAPES`` and the name of a factor."""

    def __post_init__(self) -> None:
        """Sort the factors by name, so that equal products are written alike."""
        object.__setattr__(self, "powers", dict(sorted(self.powers.items())))

    def values(self, factors: Mapping[str, Floats], rows: int) -> Floats:
        """Return its value in each of ``rows`` runs."""
        found = np.ones(rows)
        for name, power in self.powers.items():
            found = found * factors[name] ** power
        return found if self.shape is None else found * shape_values(self.shape[0], factors[self.shape[1]])


@dataclass(frozen=True)
class Term:
    """A term of a run time, up to its constant: a product, or the larger of it and another one, which overlap."""

    product: Product
    rival: Product | None = None
    """A product that runs at the same time as ``product``; the longer of the two counts."""
    ratio: float = 1.0
    """Constant of the rival over that of ``product``."""

    def values(self, factors: Mapping[str, Floats], rows: int) -> Floats:
        """Return its value in each of ``rows`` runs."""
        found = self.product.values(factors, rows)
        return found if self.rival is None else np.maximum(found, self.ratio * self.rival.values(factors, rows))
