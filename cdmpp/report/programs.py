"""The report on predicted programs: a row for each, and what lowers the trust in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cdmpp.predict.flags import FLAGS, NO_MACHINE_CODE
from cdmpp.predict.prediction import Prediction
from cdmpp.report.report import Column, Report, Table

_NAMED = 3
"""Left-out programs that are named; the JSON has all."""
_TOLD = 1.02
"""Between the answers at the ends of a range; what moves them less is only in the JSON."""


def programs_report(prediction: Prediction, model: str) -> Report:
    """Report programs as rows, fastest first; ``model`` is the name of the model that answered."""
    promised = {str(level): promise for level, promise in prediction.promised.items()}
    answer = {
        "device": prediction.device, "model": model, "interval_promised": promised,
        "programs": [_answer(prediction, i) for i in range(len(prediction))], "refused": list(prediction.refused),
    }  # fmt: skip
    return Report(
        title=f"{prediction.sheet.title}, model {model}",
        answer=answer,
        tables=(_table(prediction),),
        warnings=tuple(_warnings(prediction, model)),
    )


def _table(prediction: Prediction) -> Table:
    level = min(prediction.intervals, default=None)
    bound = "" if level is None else f"{100 * prediction.promised[level]:g} % interval, "
    columns = (
        Column("program", "program", kind="text"),
        Column("latency_s", "predicted latency", "s", digits=4, meaning="One run of the program."),
        Column("interval_low_s", f"{bound}low", "s", digits=4, is_optional=True),
        Column("interval_high_s", f"{bound}high", "s", digits=4, is_optional=True),
        Column("flags", "flags", kind="text", is_optional=True),
    )
    rows = []
    for i in sorted(range(len(prediction)), key=lambda place: float(prediction.latency_s[place])):
        low, high = prediction.interval(i).get(level, (None, None)) if level is not None else (None, None)
        rows.append({
            "program": prediction.labels[i], "latency_s": float(prediction.latency_s[i]), "interval_low_s": low,
            "interval_high_s": high, "flags": list(prediction.flags[i]),
        })  # fmt: skip
    return Table("Programs, fastest first", columns, rows)


def _warnings(prediction: Prediction, model: str) -> Iterator[str]:
    """A sentence for each kind of doubt."""
    if not prediction.trained_on_device:
        expected = prediction.expected or "Expect large errors"
        if prediction.calibrated:
            yield f"the model {model} was scaled to {prediction.device} by a few timed kernels. {expected}"
        else:
            yield f"the model {model} never saw {prediction.device}, so it goes by its description. {expected}"
    for field, (at_low, at_high) in prediction.described.items():
        low, high = (f"{value:g}" for value in prediction.sheet.ranges[field])
        factor = float(np.median(np.maximum(at_low, at_high) / np.minimum(at_low, at_high)))
        if factor < _TOLD:
            continue
        hint = "; --clock-mhz gives it" if field == "clock_mhz" else ""
        yield (
            f"{prediction.device} is known by a range, {field} from {low} to {high}{hint} (`cdmpp data probe` on the "
            f"device times it): its ends lie a factor of {factor:.2f} apart, the answers are of the middle"
        )
    total = len(prediction)
    if refused := prediction.refused:
        more = f"; and {len(refused) - _NAMED} more (--json lists all)" if len(refused) > _NAMED else ""
        yield f"{len(refused)} of {total + len(refused)} programs left out: {'; '.join(refused[:_NAMED])}{more}"
    for flag, meaning in FLAGS.items():
        rows = [i for i, flags in enumerate(prediction.flags) if flag in flags]
        if not rows:
            continue
        why = next((i for i in rows if i in prediction.reasons), None) if flag == NO_MACHINE_CODE else None
        reason = "" if why is None else f" ({prediction.labels[why]}: {prediction.reasons[why]})"
        yield f"{len(rows)} of {total} programs: {flag}: {meaning}{reason}"
        if flag == NO_MACHINE_CODE and (bare := sum(not prediction.interval(i) for i in rows)):
            yield f"{bare} of {total} programs have no interval: {model} does not know how far off such answers are"


def _answer(prediction: Prediction, i: int) -> dict[str, Any]:
    """All numbers of program ``i``; intervals and the out-of-range score only where the model has them."""
    row: dict[str, Any] = {"program": prediction.labels[i], "latency_s": float(prediction.latency_s[i])}
    if prediction.intervals:
        row["intervals_s"] = {str(k): list(pair) for k, pair in prediction.interval(i).items()} or None
    if prediction.novelty is not None and prediction.unlike_training is not None:
        row["novelty"] = float(prediction.novelty[i])
        row["unlike_training"] = bool(prediction.unlike_training[i])
    if prediction.described:
        row["latency_s_at_range"] = {k: [float(end[i]) for end in ends] for k, ends in prediction.described.items()}
    row["flags"] = list(prediction.flags[i])
    if i in prediction.reasons:
        row["why_no_machine_code"] = prediction.reasons[i]
    return row
