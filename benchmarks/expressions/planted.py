"""Planted expressions: are their exponents found, and are times predicted at four times the range?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import Outcome, by_extrap, by_forest, reach_of
from benchmarks.expressions.rows import COMMANDS, NAMES, coverage
from benchmarks.expressions.split import Split
from cdmpp.expression import FitSettings, RunTable, fit_runs
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import polish
from cdmpp.expression.expression import Expression
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.searched import expression_of

COUNT, ROWS, NOISES = 20, 80, (0.01, 0.05)
NEAR = 0.1
"""An exponent is found if it is off by less."""
VALUES = (1.0, 2.0, 4.0, 8.0, 16.0)
BEYOND = 4.0
FACTORS = ("x", "y", "z")
SETTINGS = FitSettings(seed=0, budget_s=3.0)
TRUE = "least squares of the planted form"
_STEPS = 100


@dataclass(frozen=True)
class Planted:
    """A constant and two terms of two factors each, which are named so that nothing is recognised."""

    constants: tuple[float, float, float]
    powers: tuple[tuple[float, float, float], tuple[float, float, float]]

    @classmethod
    def drawn(cls, seed: int) -> Planted:
        """Draw exponents in steps of a quarter from -1 to 2, and constants that give each term its part somewhere."""
        rng = np.random.default_rng([61, seed])
        powers = np.zeros((2, 3))
        first = rng.permutation(3)[:2]
        powers[0, first] = rng.choice([-1.0, -0.5, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0], 2)
        powers[1, rng.integers(3)] = rng.choice([0.5, 0.75, 1.0, 1.5])
        constants = 10 ** rng.uniform(-1.0, 0.0, 3)
        first, second, third = map(float, constants)
        return cls((first, second, third), (tuple(powers[0].tolist()), tuple(powers[1].tolist())))

    def times_s(self, points: np.ndarray) -> np.ndarray:
        terms = [np.prod(points ** np.array(one), axis=1) for one in self.powers]
        return self.constants[0] + self.constants[1] * terms[0] + self.constants[2] * terms[1]

    def split(self, noise: float, seed: int) -> Split:
        """Noisy runs within the range, and exact ones with every factor up to four times as large."""
        rng = np.random.default_rng([62, seed])
        inside = rng.choice(VALUES, (ROWS, 3))
        outside = BEYOND * rng.choice(VALUES[2:], (ROWS // 2, 3))
        times_s = np.concatenate([self.times_s(inside) * np.exp(rng.normal(0, noise, ROWS)), self.times_s(outside)])
        points = np.concatenate([inside, outside])
        known = np.arange(len(points)) < ROWS
        return Split(f"{seed}", FACTORS, dict(zip(FACTORS, points.T, strict=True)), times_s, known, ~known)

    def is_found(self, expression: Expression) -> bool:
        """Whether each planted term has one in the expression whose exponents are all near."""
        found = [np.array([term.product.powers.get(name, 0.0) for name in FACTORS]) for term in expression.terms]
        return all(any(np.abs(one - np.array(own)).max() <= NEAR for one in found) for own in self.powers)

    def true_form(self, table: RunTable) -> Expression:
        """Fit exponents and constants of the planted form by least squares: no search could do better by much."""
        design = Design.of(table)
        places = [tuple(place for place, power in enumerate(own) if power) for own in self.powers]
        powers = [tuple(own[place] for place in one) for one, own in zip(places, self.powers, strict=True)]
        atoms = [Atom((), ()), *map(Atom, places, powers)]
        form = Form(tuple((atom,) for atom in atoms))
        return expression_of(design, polish(design, form, design.every, 0.0, _STEPS))


def noise_factors(noise: float, seed: int) -> np.ndarray:
    """Return factors by which measured times of the runs that are asked for would be off."""
    return np.exp(np.random.default_rng([63, seed]).normal(0, noise, ROWS // 2))


def tables(data: Path) -> list[dict[str, Any]]:
    """Plant, fit and predict; nothing of ``data`` is read."""
    rows = []
    for noise in NOISES:
        planted = [Planted.drawn(seed) for seed in range(COUNT)]
        splits = [one.split(noise, seed) for seed, one in enumerate(planted)]
        found, ours, ceiling, best = 0, [], 0, []
        for own, split in zip(planted, splits, strict=True):
            table = RunTable.of({**split.part(split.known), "time_s": split.times_s[split.known]}, "time_s", FACTORS)
            fitted = fit_runs(table, SETTINGS)
            predicted = fitted.predict(split.part(split.asked))
            measured = split.times_s[split.asked] * noise_factors(noise, int(split.name))
            ours.append(Outcome(split.errors(predicted.times_s), reach=reach_of(predicted, measured)))
            found += own.is_found(fitted.expression)
            true = own.true_form(table)
            points = fitted.points(split.part(split.asked))
            best.append(Outcome(split.errors(true.times_s(points.columns, points.codes))))
            ceiling += own.is_found(true)
        others = {"extrap": by_extrap(splits), "forest": [by_forest(one) for one in splits]}
        counts = {"cdmpp": f"{found} of {COUNT}", TRUE: f"{ceiling} of {COUNT}"}
        for name, outcomes in [*others.items(), ("cdmpp", ours), (TRUE, best)]:
            means = [] if outcomes is None else [one.mean for one in outcomes]
            rows.append([
                f"{100 * noise:.0f} %", NAMES.get(name, name), counts.get(name, ""),
                f"{np.mean(means):.1f}" if means else "not run", f"{np.median(means):.1f}" if means else "",
                f"{max(means):.1f}" if means else "", *(coverage(ours) if name == "cdmpp" else ("", "")),
            ])  # fmt: skip
    note = (
        f"{COUNT} expressions: a constant, a product of powers of two of three factors, and a power of one. {ROWS} "
        f"noisy runs each with factors from 1 to 16; asked for {ROWS // 2} with all factors from 16 to 64, exact. "
        f"Exponents are found if all of both terms are off by at most {NEAR:g}. The last row of each noise is the "
        "ceiling: it is told the form, and fits its three exponents and three constants to the same noisy runs. "
        "Errors are those of exact times; intervals are of measured ones, with noise as the fitted ones have."
    )
    return [{
        "title": "Planted expressions: four times the range", "note": note, "commands": COMMANDS, "rows": rows,
        "columns": [
            "noise", "predicted by", "exponents found", "mean %", "median %", "worst %", "in the 80 % interval",
            "width for 80 %",
        ],
    }]  # fmt: skip
