"""``cdmpp predict``: programs in, a table or JSON out, and a loud line for each thing that lowers the trust in it."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdmpp import devices
from cdmpp.cli.output import format_seconds, print_json, print_table, say
from cdmpp.errors import CdmppError

if TYPE_CHECKING:
    from cdmpp.operators.operator import LibraryOperator
    from cdmpp.predict.prediction import Prediction

_NAMED = 3
"""Left-out programs that are named; the JSON has all."""
_TOLD = 1.02
"""Between the answers at the ends of a range; what moves them less is only in the JSON."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    told = (
        "a TVMScript file, a database or data set folder, or stored ASTs (.parquet); or operators that a library serves"
    )
    verb.add_argument(
        "programs", nargs="+", metavar="PROGRAMS", help=f"{told}: op linear 8192x4096x4096 softmax 512x512"
    )
    verb.add_argument("--dtype", help="of operators (default float32)")
    verb.add_argument("--device", required=True, help="name of a device, see `cdmpp devices`")
    verb.add_argument("--clock-mhz", type=float, help="what a busy core runs at, where the device is known as a range")
    verb.add_argument("--model", help="model folder or name of a shipped one (default: one trained on the device)")
    verb.add_argument("--rows", type=int, default=20, help="rows of the table, fastest first; 0 = all (default 20)")
    verb.add_argument("--json", action="store_true", help="machine-readable, every program in input order")
    verb.add_argument("--no-compile", action="store_true", help="see no machine code: faster, rougher")
    verb.add_argument("--retarget", action="store_true", help="make schedules of another architecture for DEVICE's own")
    verb.add_argument("--limit", type=float, default=60.0, help="seconds to lower or compile a program (default 60)")


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON, and each warning on a line of its own."""
    device = devices.get(options.device)
    operators = _operators(options.programs, options.dtype)
    if operators and options.retarget:
        raise CdmppError("--retarget is of schedules alone: operators that a library serves have no target")
    given = operators or _path(options.programs)
    gc.disable()  # a third of the time to start would go into looking at what was just imported
    from cdmpp.predict.catalogue import model_for, models

    name = options.model or model_for(device.name, models(), "library" if operators else "cdmpp").name
    if isinstance(given, Path) and given.suffix == ".py" and given.exists():  # TVM is imported while torch is here
        from cdmpp.data.derive import has_tvm, start_workers

        if has_tvm():
            start_workers(1)
    import cdmpp

    predictor = cdmpp.load(name)
    gc.freeze()
    gc.enable()
    _check(given, options.limit)
    compiled = False if options.no_compile else None
    asked = device.name if options.clock_mhz is None else device.with_spec(clock_mhz=options.clock_mhz)
    prediction = predictor.predict(
        given, device=asked, compiled=compiled, limit_s=options.limit, retarget=options.retarget
    )
    _say_doubts(prediction, name)
    if options.json:
        promised = {str(level): promise for level, promise in prediction.promised.items()}
        head = {"device": device.name, "model": name, "interval_promised": promised}
        programs = [_row(prediction, i) for i in range(len(prediction))]
        print_json({**head, "programs": programs, "refused": list(prediction.refused)})
    else:
        _print_table(prediction, f"{device.title}, model {name}", options.rows)


def _operators(words: list[str], dtype: str | None) -> list[LibraryOperator]:
    """``op NAME SIZES [OPTION=N ...] ...``; empty for anything else."""
    if words[0] != "op":
        if dtype is not None:
            raise CdmppError(
                f"--dtype {dtype} is of operators alone: programs of {words[0]} say their types themselves"
            )
        return []
    from cdmpp.operators.operator import LibraryOperator, is_size

    calls: list[tuple[str, str, dict[str, int]]] = []
    rest = iter(words[1:])
    for word in rest:
        name, given, value = word.partition("=")
        if not given:
            calls.append((word, next(rest, ""), {}))
        elif calls and is_size(value):
            calls[-1][2][name] = int(value)
        else:
            raise CdmppError(f"{word}: an option of an operator is NAME=NUMBER after its sizes, such as bias=0")
    if not calls:
        raise CdmppError("op needs an operator and its sizes, such as: op linear 8192x4096x4096")
    return [LibraryOperator.parse(name, sizes, dtype or "float32", **more) for name, sizes, more in calls]


def _path(words: list[str]) -> Path:
    if len(words) > 1:
        raise CdmppError(f"one file or folder at a time, not {len(words)}; operators are told by: op NAME SIZES")
    return Path(words[0])


def _check(given: list[LibraryOperator] | Path, limit: float) -> None:
    if isinstance(given, Path):
        if not given.exists():
            raise CdmppError(
                f"{given} does not exist: give a TVMScript file, a folder or a .parquet file of stored ASTs"
            )
        if not given.is_dir() and given.suffix not in (".parquet", ".py"):
            raise CdmppError(
                f"{given} is neither a .py file with TVMScript nor a .parquet file of stored ASTs nor a folder"
            )
    if not limit > 0:
        raise CdmppError(f"--limit {limit:g}: must be a positive number of seconds")


def _say_doubts(prediction: Prediction, model: str) -> None:
    """One line on stderr for each kind of warning."""
    from cdmpp.predict.flags import FLAGS, NO_MACHINE_CODE

    if not prediction.trained_on_device:
        told = prediction.expected or "Expect large errors"
        if prediction.calibrated:
            say(f"the model {model} was scaled to {prediction.device} by a few timed kernels. {told}")
        else:
            say(f"the model {model} never saw {prediction.device}, so it goes by its description. {told}")
    ranges = devices.get(prediction.device).ranges
    for field, (at_low, at_high) in prediction.described.items():
        low, high = (f"{value:g}" for value in ranges[field])
        factor = float(np.median(np.maximum(at_low, at_high) / np.minimum(at_low, at_high)))
        if factor < _TOLD:
            continue
        hint = "; --clock-mhz gives it" if field == "clock_mhz" else ""
        say(
            f"{prediction.device} is known by a range, {field} from {low} to {high}{hint} (`cdmpp data probe` on "
            f"the device times it): its ends lie a factor of {factor:.2f} apart, the answers are of the middle"
        )
    total = len(prediction)
    if refused := prediction.refused:
        more = f"; and {len(refused) - _NAMED} more (--json lists all)" if len(refused) > _NAMED else ""
        say(f"{len(refused)} of {total + len(refused)} programs left out: {'; '.join(refused[:_NAMED])}{more}")
    for flag, meaning in FLAGS.items():
        rows = [i for i, flags in enumerate(prediction.flags) if flag in flags]
        if not rows:
            continue
        why = next((i for i in rows if i in prediction.reasons), None) if flag == NO_MACHINE_CODE else None
        reason = "" if why is None else f" ({prediction.labels[why]}: {prediction.reasons[why]})"
        say(f"{len(rows)} of {total} programs: {flag}: {meaning}{reason}")
        if flag == NO_MACHINE_CODE and (bare := sum(not prediction.interval(i) for i in rows)):
            say(f"{bare} of {total} programs have no interval: {model} does not know how far off such answers are")


def _print_table(prediction: Prediction, title: str, rows: int) -> None:
    seconds, labels = [float(value) for value in prediction.latency_s], prediction.labels
    order = sorted(range(len(seconds)), key=seconds.__getitem__)
    shown = order[:rows] if rows > 0 else order
    slower = len(order) - len(shown)
    columns = {"program": [labels[i] for i in shown], "predicted latency": [format_seconds(seconds[i]) for i in shown]}
    if prediction.intervals:
        level = min(prediction.intervals)
        bounds = [prediction.interval(i).get(level) for i in shown]
        columns[f"{100 * prediction.promised[level]:g} % interval"] = [
            "none" if pair is None else " - ".join(map(format_seconds, pair)) for pair in bounds
        ]
    numbers = list(columns)[1:]
    if any(prediction.flags[i] for i in shown):
        columns["flags"] = [", ".join(prediction.flags[i]) for i in shown]
    caption = f"{slower} slower ones not shown (--rows 0 shows all)" if slower else None
    print_table(title, list(columns), zip(*columns.values(), strict=True), right=numbers, caption=caption)


def _row(prediction: Prediction, i: int) -> dict[str, Any]:
    """Of program ``i``; intervals and the out-of-range score where the model has them, null where it has none of it."""
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
