"""Feature: one number that is read of a program, declared once by name. Extractors, models and docs read this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdmpp.platform.files import read_json


@dataclass(frozen=True)
class Feature:
    """A feature is a column of a leaf, kernel or machine-code vector."""

    name: str
    unit: str
    """The unit of the quantity, before it is stored. ``flag``: 0 or 1; ``share``: from 0 to 1."""
    meaning: str

    @property
    def plain(self) -> bool:
        """The quantity is stored as it is; that of every other feature is stored as ``slog``."""
        return self.unit in ("flag", "share")


def read_features(path: Path) -> dict[str, tuple[Feature, ...]]:
    """Read the features that a JSON file declares: group -> name -> [unit, meaning], in the order of their columns."""
    return {
        group: tuple(Feature(name, *told) for name, told in rows.items()) for group, rows in read_json(path).items()
    }


def slog(quantity: float) -> float:
    """Compute sign(x) * log2(1 + |x|)."""
    return math.copysign(math.log2(1.0 + abs(quantity)), quantity)


def slogs(quantities: np.ndarray) -> np.ndarray:
    """Compute ``slog`` of each number."""
    return np.copysign(np.log2(1.0 + np.abs(quantities)), quantities)


def stored(features: Sequence[Feature], quantities: Mapping[str, float]) -> list[float]:
    """Return ``quantities`` by name as the numbers that are stored, in the order of ``features``.

    Raises:
        KeyError: a quantity is missing, or is not declared.
    """
    if undeclared := quantities.keys() - names(features):
        raise KeyError(f"not declared as features: {sorted(undeclared)}")
    return [float(quantities[f.name]) if f.plain else slog(quantities[f.name]) for f in features]


def names(features: Iterable[Feature]) -> tuple[str, ...]:
    """Return the names of the features, in order."""
    return tuple(feature.name for feature in features)


def prefixed(prefix: str, features: Iterable[Feature], of: str = "") -> tuple[Feature, ...]:
    """Repeat the features for one of several loads, loops and the like: ``of`` comes before each meaning."""
    return tuple(replace(f, name=f"{prefix}_{f.name}", meaning=f"{of}{f.meaning}") for f in features)
