"""Candidates: the products that may become terms: plausible powers of every factor, times every shape."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design
from cdmpp.expression.factor import Factor
from cdmpp.expression.form import Atom

Floats = npt.NDArray[np.float64]
_MOST_NUMBERS = 12_000_000
"""Values of all candidates in all rows."""
_MOST = 30_000
_LATE = {"gpus": 1, "batch": 2}
"""Roles that are left out first where a factor is a product of powers of others."""


@dataclass(frozen=True)
class Candidates:
    """A library of products, with their values."""

    atoms: tuple[Atom, ...]
    columns: Floats
    """Values over the measured times, shape ``(rows, candidates)``."""

    @classmethod
    def of(cls, design: Design) -> Candidates:
        """List the products of a design, simple ones first where there are too many."""
        places = independent(design)
        shapes = range(len(design.shape_keys))
        most = max(100, min(_MOST, _MOST_NUMBERS // (2 * len(design.table))))
        choices = [tried_powers(design.factors[place]) for place in places]
        found = list[tuple[tuple[int, ...], tuple[float, ...]]]()
        for count in range(len(places) + 1):
            for chosen in itertools.combinations(range(len(places)), count):
                for powers in itertools.product(*(choices[one] for one in chosen)):
                    found.append((tuple(places[one] for one in chosen), powers))
            if len(found) > most:
                break
        found = found[:most]
        exponents = np.zeros((len(found), len(design.factors)))
        for row, (factors, powers) in enumerate(found):
            exponents[row, list(factors)] = powers
        products = np.exp(design.logs @ exponents.T) / design.table.times_s[:, None]
        atoms, columns = list[Atom](), list[Floats]()
        for shape in shapes:
            key = design.shape_keys[shape]
            room = most if key is None else most // len(shapes)
            kept = [i for i, (factors, _) in enumerate(found[:room]) if key is None or key[1] not in factors]
            atoms += [Atom(*found[i], shape) for i in kept]
            columns.append(products[:, kept] * design.shapes[:, shape : shape + 1])
        return cls(tuple(atoms), np.concatenate(columns, axis=1))

    def best(self, design: Design, columns: Floats, relative: Floats, most: int) -> list[int]:
        """Return the places of the candidates that would take away most of the squared error, best first.

        Args:
            design: of the table.
            columns: of the terms that are there already, shape ``(rows, terms)``.
            relative: predicted over measured time with them, shape ``(rows,)``.
            most: how many.
        """
        gains = np.zeros(len(self.atoms))
        codes = design.table.codes
        for group in range(len(design.table.groups)):
            own = codes == group
            basis = np.linalg.qr(columns[own])[0] if columns.shape[1] and own.sum() > columns.shape[1] else None
            left = 1.0 - relative[own]
            tried = self.columns[own]
            along = tried.T @ left
            size = (tried**2).sum(axis=0)
            if basis is not None:
                inside = basis.T @ tried
                size = np.maximum(size - (inside**2).sum(axis=0), 1e-6 * size)
                along = along - inside.T @ (basis.T @ left)
            gains += np.where(along > 0, along**2 / np.maximum(size, 1e-300), 0.0)
        order = np.argsort(-gains, kind="stable")
        return self._unlike(order, most)

    def _unlike(self, order: npt.NDArray[np.intp], most: int) -> list[int]:
        """The first of ``order`` that are no multiples of each other."""
        kept = list[int]()
        units = list[Floats]()
        for place in order[: 6 * most]:
            size = np.linalg.norm(self.columns[:, place])
            if not size:
                continue
            unit = self.columns[:, place] / size
            if all(unit @ other < 1 - 1e-9 for other in units):
                kept.append(int(place))
                units.append(unit)
            if len(kept) == most:
                break
        return kept


def tried_powers(factor: Factor) -> list[float]:
    """Return the powers that a search begins with: the plausible ones but 0, and halves where little is known."""
    role = factor.role
    is_open = role.is_count or not role.name
    return sorted(
        {power for one in role.powers for power in (one, *((one / 2,) if is_open and abs(one) == 1 else ())) if power}
    )


def independent(design: Design) -> list[int]:
    """Return the places of factors of which none is a product of powers of others; derived ones are kept first."""

    def rank(place: int) -> tuple[int, int]:
        factor = design.factors[place]
        return (_LATE.get(factor.role.name, 0) - (factor.kind != "column"), place)

    kept, basis = list[int](), np.empty((len(design.table), 0))
    for place in sorted(range(len(design.factors)), key=rank):
        column = design.logs[:, place] - design.logs[:, place].mean()
        left = column - basis @ (basis.T @ column)
        left = left - basis @ (basis.T @ left)
        if np.linalg.norm(left) > 1e-6 * np.sqrt(len(column)):
            kept.append(place)
            basis = np.column_stack([basis, left / np.linalg.norm(left)])
    return sorted(kept)
