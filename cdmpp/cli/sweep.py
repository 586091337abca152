"""``--sweep``: the sizes at which a network is asked for, of the verbs that predict one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdmpp.cli.output import say, show
from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, path, shown, text

if TYPE_CHECKING:
    from cdmpp import Workload

_FACTORS = Limits(2, 2**31)
_MOST = 10_000


def add_sweep_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare which sizes are swept, and where a picture goes."""
    add_sweep_argument(verb)
    verb.add_argument("--plot", type=path, metavar="FILE", help="with --sweep: also a picture, PNG; needs matplotlib")


def add_sweep_argument(verb: argparse.ArgumentParser) -> None:
    """Declare which sizes are swept."""
    sizes = (
        "answer at each of these sizes: batch, seq (tokens of each example), decoder-seq, past, image (side) or an "
        "open dimension of an ONNX file, such as batch=1,2,4, seq=1..512 or N=128..4096:x2; once for each axis, all "
        "combinations"
    )
    verb.add_argument("--sweep", type=text, action="append", default=[], metavar="AXIS=SIZES", help=sizes)


def check_sweep(options: argparse.Namespace, *others: str) -> None:
    """Raise ``UsageError`` where options do not go with a sweep, ``others`` among them, or need one."""
    if not options.sweep:
        if options.plot is not None:
            raise UsageError(f"--plot {options.plot} goes with --sweep: one answer has no curve")
        return
    if options.plot is not None and options.plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {options.plot}: the picture is a PNG, so its name ends in .png")
    for name in ("timeline", *others):
        if getattr(options, name.replace("-", "_"), None):
            raise UsageError(f"--{name} is of one answer, and --sweep gives several: leave one of them out")
    axes_of(options.sweep)


def axes_of(given: Sequence[str]) -> dict[str, list[int]]:
    """``["batch=1,2,4", "seq=128..512:x2"]`` -> axis -> sizes; ``UsageError`` where that is no such list."""
    found: dict[str, list[int]] = {}
    for one in given:
        name, equals, sizes = one.partition("=")
        if not equals or not name or name in found:
            raise UsageError(f"--sweep {one}: give AXIS=SIZES once for each axis, for example batch=1,2,4")
        found[name] = [size for part in sizes.split(",") for size in _sizes(one, part.strip())]
    return found


def _sizes(option: str, part: str) -> list[int]:
    """``4``, ``1..16`` or ``1..64:x2``."""
    span, colon, factor = part.partition(":x")
    first, dots, last = span.partition("..")
    numbers = [first, last if dots else first, *([factor] if colon else [])]
    if not all(number.isdecimal() and len(number) <= 10 for number in numbers) or (colon and not dots):
        raise UsageError(
            f"--sweep {option}: {shown(part)} is no size: give whole numbers, ranges such as 1..16, or 1..64:x2 for "
            "1, 2, 4 and so on"
        )
    low, high = int(numbers[0]), int(numbers[1])
    if low > high:
        raise UsageError(f"--sweep {option}: {part} ends before it begins")
    if not colon:
        if high - low >= _MOST:
            raise UsageError(f"--sweep {option}: {part} has {high - low + 1:,} sizes, more than {_MOST:,}")
        return list(range(low, high + 1))
    step, made = _FACTORS.fitting("the factor of --sweep", int(factor)), list[int]()
    while low <= high and low:
        made.append(low)
        low *= step
    return made or [0]


def run_sweep(options: argparse.Namespace, workload: Workload, progress: bool, **runtime: Any) -> None:
    """Predict all points, and show the report."""
    import cdmpp
    from cdmpp.report.sweep import sweep_report, write_sweep

    found = cdmpp.sweep_network(
        workload, axes=axes_of(options.sweep), device=options.device, progress=progress, **runtime
    )
    report = sweep_report(found)
    show({"": report}, options)
    if options.plot is not None:
        write_sweep(found, options.plot)
        say(f"wrote {options.plot}")
