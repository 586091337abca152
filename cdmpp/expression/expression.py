"""Expression: a run time as a sum of terms with non-negative constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import DataError
from cdmpp.expression.factor import Factor, factors_of
from cdmpp.expression.term import SHAPES, Product, Term
from cdmpp.expression.writing import latex_of, python_of, text_of

Floats = npt.NDArray[np.float64]

TINY_S = 1e-300
"""Times below this count as this, so that each has a logarithm."""


@dataclass(frozen=True)
class Expression:
    """An expression of run times in seconds. Groups share terms; each has constants of its own."""

    columns: tuple[str, ...]
    """Columns that a run is described by."""
    terms: tuple[Term, ...]
    constants: tuple[tuple[float, ...], ...]
    """Seconds that a term is multiplied by: for each group, for each term."""
    groups: tuple[str, ...] = ("",)
    """Names of the groups; one without a name where there are none."""
    time_name: str = "time_s"

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Return the factors of the columns."""
        return factors_of(self.columns)

    def parts_s(self, columns: Mapping[str, Floats], codes: npt.NDArray[np.intp]) -> Floats:
        """Return the seconds of each term in each run, shape ``(rows, terms)``.

        Args:
            columns: name of a column -> its values, shape ``(rows,)``.
            codes: place of the group of each run, shape ``(rows,)``.
        """
        values = {one.name: one.values(columns) for one in self.factors}
        terms = [term.values(values, len(codes)) for term in self.terms]
        return np.column_stack(terms) * np.array(self.constants)[codes]

    def times_s(self, columns: Mapping[str, Floats], codes: npt.NDArray[np.intp]) -> Floats:
        """Return the seconds of each run, shape ``(rows,)``; arguments as of ``parts_s``."""
        return self.parts_s(columns, codes).sum(axis=1)

    def text(self) -> str:
        """Return the expression as people write it, with units."""
        return text_of(self)

    def latex(self) -> str:
        """Return the expression as LaTeX, for a displayed formula."""
        return latex_of(self)

    def python(self) -> str:
        """Return a function of Python that needs ``math`` only."""
        return python_of(self)

    @property
    def json(self) -> dict[str, Any]:
        """Return all of it as JSON takes it; ``from_json`` reads it back."""
        return {
            "time": self.time_name,
            "columns": list(self.columns),
            "groups": list(self.groups),
            "terms": [
                {
                    "product": _product_json(term.product),
                    **({} if term.rival is None else {"rival": _product_json(term.rival), "ratio": term.ratio}),
                    "constants_s": [own[place] for own in self.constants],
                }
                for place, term in enumerate(self.terms)
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Expression:
        """Read what ``json`` gave. ``DataError`` where it is something else."""
        try:
            terms = [
                Term(
                    _product(one["product"]),
                    _product(one["rival"]) if "rival" in one else None,
                    float(one.get("ratio", 1.0)),
                )
                for one in value["terms"]
            ]
            by_term = [[float(number) for number in one["constants_s"]] for one in value["terms"]]
            made = cls(
                tuple(map(str, value["columns"])), tuple(terms), tuple(zip(*by_term, strict=True)),
                tuple(map(str, value["groups"])), str(value["time"]),
            )  # fmt: skip
            known = {one.name for one in made.factors}
            used = {name for term in terms for one in (term.product, term.rival) if one for name in one.powers}
            if used <= known and len(made.constants) == len(made.groups):
                return made
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"this is no expression that was written by cdmpp fit: {error}") from error
        raise DataError("this is no expression that was written by cdmpp fit: its factors or groups do not fit")


def _product_json(product: Product) -> dict[str, Any]:
    shape = product.shape
    return {"powers": dict(product.powers), **({} if shape is None else {"shape": shape[0], "of": shape[1]})}


def _product(value: Mapping[str, Any]) -> Product:
    if "shape" in value and value["shape"] not in SHAPES:
        raise ValueError(f"shape {value['shape']!r}, expected one of {', '.join(SHAPES)}")
    shape = (str(value["shape"]), str(value["of"])) if "shape" in value else None
    return Product({str(name): float(power) for name, power in value["powers"].items()}, shape)
