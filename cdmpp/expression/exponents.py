"""Exponents: fitted with the constants projected out, by differential evolution and Gauss-Newton steps.

Cost: the mean squared relative error, and ``strength`` times the squared distance of each exponent from the nearest
physically plausible one. Constants are the best non-negative ones for any exponents (variable projection: Golub and
Pereyra, 1973), so the search has no more dimensions than there are exponents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import differential_evolution

from cdmpp.expression.design import Design
from cdmpp.expression.form import MOST_POWER, Form

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
_STEP = 1e-5
_CONVERGED = 1e-4
"""Part of the cost that a step must take away for another one to follow."""
_RATIO_REACH = 6.0
"""Logarithm of the factor by which the ratio of two overlapping atoms may leave its start."""


@dataclass(frozen=True)
class ExponentFit:
    """A form with fitted exponents, and what belongs to it."""

    form: Form
    constants: Floats
    """Shape ``(groups, terms)``."""
    cost: float
    """Mean squared relative error on the rows of the fit, with the penalty."""
    squared_error: float
    """Mean squared relative error on the rows of the fit."""


def plausible(design: Design, form: Form) -> Floats:
    """Return the plausible exponent that is nearest to each exponent of a form, shape ``(form.powers,)``.

    Those that are fixed are plausible as they are.
    """
    found = []
    for atom in form.atoms:
        for factor, power in zip(atom.factors, atom.powers, strict=True):
            known = (power,) if factor in atom.fixed else design.factors[factor].role.powers
            found.append(min(known, key=lambda one: abs(one - power)))
    return np.array(found)


def snapped(design: Design, form: Form) -> Form:
    """Return the form with plausible exponents. Fitted ones make up for what is missing, and have seen all rows."""
    return form.at(np.concatenate([plausible(design, form), form.start[form.powers :]]))


def polish(design: Design, form: Form, rows: Rows, strength: float, steps: int = 12) -> ExponentFit:
    """Improve exponents from where they are, by damped Gauss-Newton steps (Levenberg and Marquardt).

    Args:
        design: of the table.
        form: where to begin.
        rows: the rows that are fitted.
        strength: of the regularisation; infinite: exponents stay.
        steps: at most.
    """
    vector, free = form.start, form.free
    if not len(free) or np.isinf(strength):
        return refitted(design, form, rows, 0.0 if np.isinf(strength) else strength)
    low, high = _bounds(form)
    damping = 1e-3
    for _ in range(steps):
        moved = np.concatenate([vector[None], vector + _STEP * np.eye(len(vector))[free]])
        residuals = _residuals(design, form, moved, rows, strength)
        slope = (residuals[1:] - residuals[0]).T / _STEP
        gram, right = slope.T @ slope, slope.T @ residuals[0]
        diagonal = np.diag(np.maximum(np.diag(gram), 1e-12))
        dampings = damping * np.array([0.01, 0.1, 1.0, 10.0, 100.0])
        tried = np.repeat(vector[None], len(dampings), axis=0)
        tried[:, free] -= np.stack([np.linalg.solve(gram + one * diagonal, right) for one in dampings])
        tried = np.clip(tried, low, high)
        lefts = _residuals(design, form, tried, rows, strength)
        costs = (lefts**2).sum(axis=1)
        best = int(np.argmin(costs))
        before = (residuals[0] ** 2).sum()
        if costs[best] >= before * (1 - 1e-12):
            damping *= 1e4
            if damping > 1e6:
                break
            continue
        damping = float(np.clip(dampings[best], 1e-9, 1e6))
        vector = tried[best]
        if costs[best] > before * (1 - _CONVERGED):
            break
    return refitted(design, form.at(vector), rows, strength)


def evolve(design: Design, form: Form, rows: Rows, strength: float, evaluations: int, seed: int) -> ExponentFit:
    """Search exponents over their whole range by differential evolution, then polish the best.

    ``evaluations`` bounds the work, so that the same seed gives the same answer on every machine.
    """
    free = form.free
    if not len(free):
        return refitted(design, form, rows, strength)
    low, high = (bound[free] for bound in _bounds(form))
    size = 15 if len(low) < 4 else 10 if len(low) < 8 else 6
    rounds = max(1, evaluations // (size * len(low)) - 1)

    def costs(vectors: Floats) -> Floats:
        return (_residuals(design, form, whole(np.atleast_2d(vectors.T)), rows, strength) ** 2).sum(axis=1)

    def whole(vectors: Floats) -> Floats:
        found = np.repeat(form.start[None], len(vectors), axis=0)
        found[:, free] = vectors
        return found

    found = differential_evolution(
        costs, list(zip(low, high, strict=True)), x0=np.clip(form.start[free], low, high), maxiter=rounds, popsize=size,
        rng=np.random.default_rng(seed), polish=False, vectorized=True, updating="deferred", tol=1e-6,
    )  # fmt: skip
    return polish(design, form.at(whole(found.x[None])[0]), rows, strength, 20)


def squared_errors(design: Design, fit: ExponentFit, rows: Rows) -> Floats:
    """Return predicted over measured time less 1, of some rows."""
    columns = fit.form.columns(design, fit.form.start[None])
    return design.relative(columns, fit.constants[None], rows)[0] - 1.0


def refitted(design: Design, form: Form, rows: Rows, strength: float) -> ExponentFit:
    """Fit the constants of a form to some rows; its exponents stay."""
    columns = form.columns(design, form.start[None])
    constants = design.constants(columns, rows)
    errors = design.relative(columns, constants, rows)[0] - 1.0
    squared = float((errors**2).mean())
    away = form.start[: form.powers] - plausible(design, form)
    return ExponentFit(form, constants[0], squared + strength * float((away**2).sum()), squared)


def _residuals(design: Design, form: Form, vectors: Floats, rows: Rows, strength: float) -> Floats:
    """Residuals whose sum of squares is the cost, shape ``(batch, rows + exponents)``."""
    columns = form.columns(design, vectors)
    errors = design.relative(columns, design.constants(columns, rows), rows) - 1.0
    powers = vectors[:, : form.powers]
    allowed = [design.factors[factor].role.powers for atom in form.atoms for factor in atom.factors]
    away = np.zeros((len(vectors), form.powers))
    for place in form.free[form.free < form.powers]:
        away[:, place] = np.abs(powers[:, place, None] - np.array(allowed[place])).min(axis=1)
    return np.concatenate([errors / np.sqrt(len(rows)), np.sqrt(strength) * away], axis=1)


def _bounds(form: Form) -> tuple[Floats, Floats]:
    powers, ratios = form.powers, np.array(form.log_ratios)
    low = np.concatenate([np.full(powers, -MOST_POWER), ratios - _RATIO_REACH])
    return low, np.concatenate([np.full(powers, MOST_POWER), ratios + _RATIO_REACH])
