"""Files of fits: a fitted expression with its runs, as JSON, so that it predicts again without a fit."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.expression.expression import Expression
from cdmpp.expression.fitted_expression import ExponentInterval, FittedExpression
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.run_table import RunTable
from cdmpp.expression.spread import Spread
from cdmpp.platform.content import parse_json
from cdmpp.platform.files import write_json

_KIND = "cdmpp fit"
_ERRORS = ("error_inside", "error_random", "error_constant", "strength")
_ABSENT = "error_held_out"


def write_fit(fitted: FittedExpression, path: str | Path) -> None:
    """Write a fit, whole or not at all; ``DataError`` where that cannot be."""
    table = fitted.table
    write_json(Path(path), {
        "kind": _KIND,
        "expression": fitted.expression.json,
        "ensemble": [one.json for one in fitted.ensemble],
        "runs": {
            "time_s": table.times_s.tolist(),
            "factors": [table.factors[name].tolist() for name in fitted.expression.columns],
            "group_names": list(table.group_names),
            "labels": list(table.labels),
            "fixed": dict(table.fixed),
        },
        "exponents": [vars(one) for one in fitted.exponents],
        "spread": vars(fitted.spread),
        "scores": {name: _finite(getattr(fitted, name)) for name in _ERRORS} | {_ABSENT: fitted.error_held_out},
        "warnings": list(fitted.warnings),
    })  # fmt: skip


def read_fit(path: str | Path) -> FittedExpression:
    """Read what ``write_fit`` wrote. ``DataError`` names a file that cannot be read or is something else."""
    path = Path(path)
    try:
        return _fit(parse_json(path.read_bytes()))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is no file of --save of cdmpp fit: {error}") from error


def _fit(value: Any) -> FittedExpression:
    if isinstance(value, dict) and "kind" not in value and "predictions" in value:
        raise ValueError("it is an answer of --json; save the fit with --save FILE.json and give that")
    if value["kind"] != _KIND:
        raise ValueError(f"its kind is {value['kind']!r}")
    expression, runs = Expression.from_json(value["expression"]), value["runs"]
    labels = tuple(map(str, runs["labels"]))
    factors = dict(zip(expression.columns, runs["factors"], strict=True))
    columns = factors | {expression.time_name: runs["time_s"]}
    checked = RunTable.of(columns, expression.time_name, list(factors), unit_s=1.0)
    if len(labels) != len(checked) or set(labels) != set(expression.groups):
        raise ValueError("the groups of its runs are not those of its expression")
    table = RunTable(
        checked.factors, checked.times_s, tuple(runs["group_names"]), labels, expression.time_name, checked.warnings,
        {str(name): float(fixed) for name, fixed in runs.get("fixed", {}).items()},
    )  # fmt: skip
    ensemble = tuple(Expression.from_json(one) for one in value["ensemble"])
    same = (expression.columns, expression.groups)
    if not ensemble or any((one.columns, one.groups) != same for one in ensemble):
        raise ValueError("its expressions have columns or groups that differ")
    scores: dict[str, Any] = {
        name: np.inf if value["scores"][name] is None else float(value["scores"][name]) for name in _ERRORS
    }
    spread = {one.name for one in fields(Spread)}
    if set(value["spread"]) != spread:
        raise ValueError("its intervals are not of this version, which has other ones: fit its runs again")
    absent = value["scores"][_ABSENT]
    scores |= {_ABSENT: None if absent is None else float(absent)}
    return FittedExpression(
        expression, table, ensemble, tuple(ExponentInterval(**one) for one in value["exponents"]),
        Kriging.of_fit(expression, table.factors, table.codes, table.times_s),
        Spread(**{name: float(value["spread"][name]) for name in spread}), **scores, warnings=tuple(value["warnings"]),
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
