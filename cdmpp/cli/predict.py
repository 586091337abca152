"""``cdmpp predict``: programs in, their latencies out."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp import devices
from cdmpp.cli.options import add_device, add_model
from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.errors import UsageError
from cdmpp.platform.limits import numbers, text

if TYPE_CHECKING:
    from cdmpp.devices import Device
    from cdmpp.operators.operator import EagerOperator
    from cdmpp.report.report import Report


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    told = "a TVMScript file, a database or data set folder, or stored ASTs (.parquet); or framework operators"
    verb.add_argument(
        "programs", type=text, nargs="+", metavar="PROGRAMS", help=f"{told}: op linear 8192x4096x4096 softmax 512x512"
    )
    verb.add_argument("--dtype", type=text, help="of operators (default float32)")
    add_device(verb)
    clock = "what a busy core runs at, where the device is known as a range"
    verb.add_argument("--clock-mhz", type=numbers(1, 10**5, "MHz"), help=clock)
    add_model(verb)
    add_output_arguments(verb, "csv", "html", rows=20)
    verb.add_argument("--no-compile", action="store_true", help="see no machine code: faster, rougher")
    verb.add_argument("--retarget", action="store_true", help="make schedules of another architecture for DEVICE's own")
    limit = numbers(0, 10**6, "seconds", above=True)
    verb.add_argument("--limit", type=limit, default=60.0, help="seconds to lower or compile a program (default 60)")


def run(options: argparse.Namespace) -> None:
    """Predict, and show the report."""
    check_output(options)
    device = devices.get(options.device)
    operators = _operators(options.programs, options.dtype)
    if operators and options.retarget:
        raise UsageError("--retarget is of schedules alone: framework operators have no target")
    from cdmpp.cli.kept_answer import KeptAnswer

    kept = KeptAnswer.of_operators(options) if operators else None
    report = None if kept is None else kept.read()
    if report is None:
        report = _predicted(options, device, operators or _path(options.programs))
        if kept is not None:
            kept.write(report)
    show({"": report}, options)


def _predicted(options: argparse.Namespace, device: Device, given: list[EagerOperator] | Path) -> Report:
    gc.disable()  # a third of the time to start would go into looking at what was just imported
    from cdmpp.ast.layout import EAGER_FEATURES
    from cdmpp.predict.catalogue import model_for, models

    features = "cdmpp" if isinstance(given, Path) else EAGER_FEATURES
    name = options.model or model_for(device.name, models(), features).name
    if isinstance(given, Path) and given.suffix == ".py" and given.exists():  # TVM is imported while torch is here
        from cdmpp.data.derive import has_tvm, start_workers

        if has_tvm():
            start_workers(1)
    import cdmpp
    from cdmpp.report.programs import programs_report

    predictor = cdmpp.load_model(name)
    gc.freeze()
    gc.enable()
    _check(given)
    compiled = False if options.no_compile else None
    asked = device.name if options.clock_mhz is None else device.with_spec(clock_mhz=options.clock_mhz)
    prediction = predictor.predict(
        given, device=asked, compiled=compiled, limit_s=options.limit, retarget=options.retarget
    )
    return programs_report(prediction, name)


def _operators(words: list[str], dtype: str | None) -> list[EagerOperator]:
    """``op NAME SIZES [OPTION=N ...] ...``; empty for anything else."""
    if words[0] != "op":
        if dtype is not None:
            raise UsageError(
                f"--dtype {dtype} is of operators alone: programs of {words[0]} say their types themselves"
            )
        return []
    from cdmpp.operators.operator import EagerOperator, is_size

    calls: list[tuple[str, str, dict[str, int]]] = []
    rest = iter(words[1:])
    for word in rest:
        name, given, value = word.partition("=")
        if not given:
            calls.append((word, next(rest, ""), {}))
        elif calls and name in calls[-1][2]:
            raise UsageError(f"{word}: {name}={calls[-1][2][name]} was said before: each option of {calls[-1][0]} once")
        elif calls and is_size(value):
            calls[-1][2][name] = int(value)
        else:
            raise UsageError(f"{word}: an option of an operator is NAME=NUMBER after its sizes, such as bias=0")
    if not calls:
        raise UsageError("op needs an operator and its sizes, such as: op linear 8192x4096x4096")
    return [EagerOperator.parse(name, sizes, dtype or "float32", **more) for name, sizes, more in calls]


def _path(words: list[str]) -> Path:
    if len(words) > 1:
        raise UsageError(f"one file or folder at a time, not {len(words)}; operators are told by: op NAME SIZES")
    return Path(words[0])


def _check(given: list[EagerOperator] | Path) -> None:
    if isinstance(given, Path):
        if not given.exists():
            raise UsageError(
                f"{given} does not exist: give a TVMScript file, a folder or a .parquet file of stored ASTs"
            )
        if not given.is_dir() and given.suffix not in (".parquet", ".py"):
            raise UsageError(
                f"{given} is neither a .py file with TVMScript nor a .parquet file of stored ASTs nor a folder"
            )
