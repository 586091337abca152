"""Form: the structure of an expression while it is fitted: which factors and shapes, and where exponents begin."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cdmpp.expression.design import Design

Floats = npt.NDArray[np.float64]
MOST_POWER = 3.0
"""Largest absolute exponent."""


@dataclass(frozen=True)
class Atom:
    """A product in places: of factors and of a shape of a design."""

    factors: tuple[int, ...]
    powers: tuple[float, ...]
    shape: int = 0
    fixed: frozenset[int] = frozenset()
    """Factors whose exponents stay as they are."""


Term = tuple[Atom, ...]
"""One atom, or two that overlap."""


@dataclass(frozen=True)
class Form:
    """A form is a list of terms; a pair of atoms counts as the larger of the two."""

    terms: tuple[Term, ...]
    """The terms, each of one atom or of two that overlap."""
    log_ratios: tuple[float, ...] = ()
    """Logarithm of the constant of the second atom over that of the first, for each term of two."""

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """All atoms in order."""
        return tuple(atom for term in self.terms for atom in term)

    @cached_property
    def start(self) -> Floats:
        """Exponents and ratios as one vector."""
        return np.array([power for atom in self.atoms for power in atom.powers] + list(self.log_ratios))

    @cached_property
    def powers(self) -> int:
        """Count the numbers of the vector that are exponents."""
        return sum(len(atom.powers) for atom in self.atoms)

    @cached_property
    def free(self) -> npt.NDArray[np.intp]:
        """Places in the vector that a fit may change."""
        free = [factor not in atom.fixed for atom in self.atoms for factor in atom.factors]
        return np.flatnonzero(free + [True] * len(self.log_ratios))

    def at(self, vector: Floats) -> Form:
        """Return the form with other exponents and ratios."""
        place, terms = 0, list[tuple[Atom, ...]]()
        for term in self.terms:
            atoms = []
            for atom in term:
                powers = tuple(float(one) for one in vector[place : place + len(atom.powers)])
                atoms.append(replace(atom, powers=powers))
                place += len(atom.powers)
            terms.append(tuple(atoms))
        return Form(tuple(terms), tuple(float(one) for one in vector[self.powers :]))

    def ratio_of(self, place: int) -> float:
        """Return the logarithm of the ratio of a term of two atoms."""
        return self.log_ratios[sum(len(term) > 1 for term in self.terms[:place])]

    def without(self, places: Collection[int] | npt.NDArray[np.intp]) -> Form:
        """Return the form without the terms at some places."""
        kept = [place for place in range(len(self.terms)) if place not in places]
        ratios = tuple(self.ratio_of(place) for place in kept if len(self.terms[place]) > 1)
        return Form(tuple(self.terms[place] for place in kept), ratios)

    def columns(self, design: Design, vectors: Floats) -> Floats:
        """Values of the terms over the measured times.

        Args:
            design: of the table.
            vectors: exponents and ratios, shape ``(batch, len(start))``.

        Returns:
            Shape ``(batch, rows, terms)``.
        """
        place, ratio = 0, self.powers
        found = np.empty((len(vectors), len(design.table), len(self.terms)))
        for column, term in enumerate(self.terms):
            values = []
            for atom in term:
                powers = vectors[:, place : place + len(atom.powers)]
                place += len(atom.powers)
                values.append(np.exp(powers @ design.logs[:, list(atom.factors)].T) * design.shapes[:, atom.shape])
            if len(term) > 1:
                found[:, :, column] = np.maximum(values[0], np.exp(vectors[:, ratio])[:, None] * values[1])
                ratio += 1
            else:
                found[:, :, column] = values[0]
        return found / design.table.times_s[None, :, None]
