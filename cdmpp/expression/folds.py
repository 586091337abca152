"""Folds: rows that are held out as users extrapolate: the largest values of a factor, or random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design

Rows = npt.NDArray[np.intp]
_LEAST_TRAINED, _MOST_HELD, _LEAST_HELD = 0.3, 0.5, 3
"""Share of all rows that must be left to fit, share that is held out at most, and rows that are at least."""
_LEAST_STEP = 0.25
"""Factors of two that rows which are held out to see how intervals widen are beyond the others, in the middle."""
_MOST_BOUNDS = 2
"""Bounds of a column above which values are held out."""


@dataclass(frozen=True)
class Fold:
    """A fold is a split of the rows of a design."""

    factor: str
    """The factor whose largest values are held out; empty for a random fold."""
    trained: Rows
    held: Rows


def extrapolating_folds(design: Design, most: int = 6) -> tuple[Fold, ...]:
    """Hold out the largest values of each column that has three or more, factors of what it runs on first.

    Groups are cut together. A fold holds out the values above a bound: the one nearest to a third of the rows.
    """
    folds = list[Fold]()
    columns = [one for one in design.factors if one.kind == "column"]
    for factor in sorted(columns, key=lambda one: not (one.role.is_count or one.role.kind == "extrinsic")):
        values = factor.values(design.table.factors)
        bounds = np.unique(values)[:-1]
        if len(bounds) < 2:
            continue
        shares = np.array([(values > bound).mean() for bound in bounds[1:]])  # at least two values are left to fit
        allowed = (shares <= min(_MOST_HELD, 1 - _LEAST_TRAINED)) & (shares * len(values) >= _LEAST_HELD)
        if not allowed.any():
            continue
        bound = bounds[1:][np.argmin(np.where(allowed, np.abs(shares - 1 / 3), np.inf))]
        folds.append(_fold(factor.name, values > bound))
    return tuple(folds[:most])


def widening_folds(design: Design) -> tuple[Fold, ...]:
    """Hold out the largest value of each column that has three or more, the two largest, and so on.

    At least two values and a fair share of the rows are left to fit, and most of the held-out rows are clearly beyond.
    """
    folds = list[Fold]()
    for factor in design.factors:
        values = factor.values(design.table.factors)
        bounds = np.unique(values)[1:-1][-_MOST_BOUNDS:].tolist() if factor.kind == "column" else []
        for bound in bounds:
            held = values > bound
            if held.sum() < _LEAST_HELD or 1 - held.mean() < _LEAST_TRAINED:
                continue
            if np.median(np.log2(values[held] / bound)) >= _LEAST_STEP:
                folds.append(_fold(factor.name, held))
    return tuple(folds)


def random_folds(design: Design, count: int, seed: int) -> tuple[Fold, ...]:
    """Split the rows at random into ``count`` parts, each of which is held out once; runs of one kind stay together."""
    table = design.table
    kinds = np.unique(np.column_stack([*table.factors.values(), table.codes]), axis=0, return_inverse=True)[1].ravel()
    order = np.random.default_rng(seed).permutation(len(table))
    drawn = list(dict.fromkeys(kinds[order].tolist()))
    count = min(count, len(drawn))
    part = np.empty(len(drawn), dtype=int)
    part[drawn] = np.arange(len(drawn)) % count
    return tuple(_fold("", part[kinds] == one) for one in range(count))


def resamples(design: Design, rows: Rows, count: int, seed: int) -> tuple[Rows, ...]:
    """Draw some rows again from each group, with replacement, ``count`` times; places sorted."""
    rng = np.random.default_rng(seed)
    codes = design.table.codes[rows]
    places = [rows[codes == group] for group in np.unique(codes)]
    return tuple(np.sort(np.concatenate([rng.choice(own, len(own)) for own in places])) for _ in range(count))


def _fold(name: str, held: npt.NDArray[np.bool_]) -> Fold:
    return Fold(name, np.flatnonzero(~held), np.flatnonzero(held))
