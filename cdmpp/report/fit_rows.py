"""Rows of what a fitted expression says: its terms at a point, its runs, points that are asked, runs to make next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cdmpp.expression.expression import Expression
from cdmpp.expression.fitted_expression import FittedExpression
from cdmpp.expression.group_label import values_of
from cdmpp.expression.suggestion import SuggestedRun
from cdmpp.expression.takeover import Takeover
from cdmpp.expression.writing import term_text

MOST_TERMS = 8
"""Terms that a reader is shown; files and JSON have all."""


def typical_point(fitted: FittedExpression) -> dict[str, Any]:
    """Return the run with the longest time among those with the most members: where users look first."""
    table = fitted.table
    scaling = [table.factors[name] for name in table.factors if name in fitted.scaling]
    place = int(np.lexsort((table.times_s, *scaling[::-1]))[-1])
    labels = values_of(table.labels[place], table.group_names)
    return {name: plain(values[place]) for name, values in table.factors.items()} | labels


def prediction_rows(fitted: FittedExpression, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Predict points."""
    if not asked:
        return []
    found = fitted.predict(asked)
    read = fitted.points(asked)
    parts, corrections = fitted.parts(read), fitted.corrections(read)
    return [
        {
            **point,
            "time_s": float(found.times_s[place]),
            "low_s": float(found.low_s[place]),
            "high_s": float(found.high_s[place]),
            "outside": list(found.outside[place]),
            "correction": float(corrections[place] - 1),
            "largest_term": term_text(fitted.expression, fitted.expression.terms[int(parts[place].argmax())]),
        }
        for place, point in enumerate(asked)
    ]


def suggested_rows(suggested: Sequence[SuggestedRun]) -> list[dict[str, Any]]:
    """List runs to make next."""
    return [
        {**one.point, "time_s": one.time_s, "width_before": one.width_before, "width_after": one.width_after}
        for one in suggested
    ]


def shares_at(fitted: FittedExpression, base: Mapping[str, Any]) -> np.ndarray:
    """Return the share of each term at a point, shape ``(terms,)``."""
    return fitted.parts(fitted.points([base]))[0]


def largest_terms(fitted: FittedExpression, base: Mapping[str, Any]) -> list[int]:
    """Return the places of the terms that a reader is shown, in their order: the largest at a point."""
    return sorted(np.argsort(-shares_at(fitted, base), kind="stable")[:MOST_TERMS].tolist())


def shown_expression(fitted: FittedExpression, base: Mapping[str, Any]) -> Expression:
    """Return the expression with those terms only."""
    kept, whole = largest_terms(fitted, base), fitted.expression
    constants = tuple(tuple(own[place] for place in kept) for own in whole.constants)
    return replace(whole, terms=tuple(whole.terms[place] for place in kept), constants=constants)


def term_rows(fitted: FittedExpression, base: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the terms with their shares at a point and their exponents, the largest first, small ones together."""
    shares, shown = shares_at(fitted, base), largest_terms(fitted, base)
    rows = [
        {
            "term": term_text(fitted.expression, fitted.expression.terms[place]),
            "share": float(shares[place]),
            "exponents": _exponents(fitted, place),
        }
        for place in sorted(shown, key=lambda place: -shares[place])
    ]
    if others := len(shares) - len(shown):
        left = float(shares.sum() - shares[shown].sum())
        rows.append({"term": f"{others} smaller terms", "share": left, "exponents": "in --json and --python"})
    return rows


def _exponents(fitted: FittedExpression, term: int) -> str:
    found = [
        f"{one.factor} {one.value:.2f}"
        + (" fixed" if one.low == one.high else f" ({min(one.low, one.value):.2f} to {max(one.high, one.value):.2f})")
        for one in fitted.exponents
        if one.term == term
    ]
    if found:
        return ", ".join(found)
    return "none: a known form" if fitted.expression.terms[term].product.shape else "none: a constant"


def crossing_row(fitted: FittedExpression, one: Takeover) -> dict[str, Any]:
    """Describe where another term becomes the largest."""
    terms = fitted.expression.terms
    return {
        **asdict(one),
        "before": term_text(fitted.expression, terms[one.before]),
        "after": term_text(fitted.expression, terms[one.after]),
    }


def run_rows(fitted: FittedExpression) -> list[dict[str, Any]]:
    """List the runs with their fitted times."""
    table = fitted.table
    fitted_s = fitted.expression.times_s(table.factors, table.codes)
    labels = [values_of(label, table.group_names) for label in table.labels]
    return [
        {
            **labels[row],
            **{name: plain(values[row]) for name, values in table.factors.items()},
            "measured_s": float(table.times_s[row]),
            "fitted_s": float(fitted_s[row]),
            "error": float(fitted_s[row] / table.times_s[row] - 1),
        }
        for row in range(len(table))
    ]


def point_text(point: Mapping[str, Any]) -> str:
    """Write a point as it is asked for: ``gpus=16, nodes=4``."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())


def plain(value: float) -> float:
    """Return a number as JSON takes it, whole ones without a point."""
    return int(value) if float(value).is_integer() else float(value)


def value_text(value: Any) -> str:
    """Write the value of a column."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
