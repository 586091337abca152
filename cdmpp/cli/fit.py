"""``cdmpp fit``: a readable expression of run times from a table of runs, and what it predicts."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.errors import UsageError
from cdmpp.platform.limits import SEED, Limits, numbers, path, shown, text

if TYPE_CHECKING:
    from cdmpp.expression import FittedExpression

_SETTINGS = ("time", "factors", "group", "seed", "budget_s")
"""Options of a fit, which a file of a fit needs no more."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("runs", type=path, help="a CSV file with a row for each run, or a file of --save")
    fit = verb.add_argument_group("the fit")
    time = "the column of times; _ms, _us or _min at its end says their unit (default: the one that is named like one)"
    fit.add_argument("--time", type=text, metavar="COLUMN", help=time)
    factors = "columns that the time depends on, with commas (default: those that are recognised, such as gpus)"
    fit.add_argument("--factors", type=text, metavar="A,B", help=factors)
    group = "columns of texts, such as model,gpu: groups share exponents and have constants of their own"
    fit.add_argument("--group", type=text, metavar="A,B", help=group)
    fit.add_argument("--seed", type=SEED, help="of the search and the resampling (default 0)")
    budget = "about how many seconds a fit may take; it is counted in steps, so answers are the same everywhere"
    fit.add_argument("--budget-s", type=numbers(0, 1e5, "seconds", above=True), metavar="S", help=f"{budget} (20)")
    ask = verb.add_argument_group("what to ask")
    point = "points, such as gpus=16,batch=64 or, with a semicolon between two, gpus=16,batch=64;gpus=32,batch=64"
    ask.add_argument("--predict", type=text, metavar="A=1,B=2", help=point)
    nexts = "say which N runs to make next, to shorten the intervals of --predict, or of twice the measured range"
    ask.add_argument("--suggest", type=Limits(1, 100, "runs"), metavar="N", help=nexts)
    add_output_arguments(verb, "csv", "html", rows=20)
    verb.add_argument("--plot", type=path, metavar="FILE", help="also write a picture, PNG; needs matplotlib")
    verb.add_argument("--save", type=path, metavar="FILE", help="also write the fit, JSON, to ask it again")
    verb.add_argument("--python", type=path, metavar="FILE", help="also write the expression as a module of Python")


def run(options: argparse.Namespace) -> None:
    """Fit or read a fit, and show the report."""
    points = [] if options.predict is None else [_point(given) for given in _split(options.predict, ";")]
    check_output(options, options.plot, options.save, options.python)
    if options.save is not None and options.save.suffix.lower() != ".json":
        raise UsageError(f"--save {options.save}: the fit is JSON and read back by that, so its name ends in .json")
    if options.plot is not None and options.plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {options.plot}: the picture is a PNG, so its name ends in .png")
    from cdmpp.expression import suggest
    from cdmpp.expression.fit_file import write_fit
    from cdmpp.platform.files import write_text
    from cdmpp.report.fit import fit_report

    fitted = _fitted(options, points)
    suggested = suggest(fitted, options.suggest, points or None) if options.suggest else ()
    asked = fitted.listed(points)
    report = fit_report(fitted, asked, suggested, options.suggest or 0)
    show({"": report}, options)
    if options.plot is not None:
        from cdmpp.report.fit_charts import write_picture

        write_picture(fitted, asked, options.plot)
        say(f"wrote {options.plot}")
    if options.save is not None:
        write_fit(fitted, options.save)
        say(f"wrote {options.save}")
    if options.python is not None:
        write_text(options.python, fitted.expression.python())
        say(f"wrote {options.python}")


def _fitted(options: argparse.Namespace, points: list[dict[str, str]]) -> FittedExpression:
    from cdmpp.expression import FitSettings, RunTable, fit_runs
    from cdmpp.expression.fit_file import read_fit
    from cdmpp.expression.points import read_points

    if options.runs.suffix.lower() == ".json":
        if given := [name for name in _SETTINGS if getattr(options, name) is not None]:
            raise UsageError(f"--{given[0].replace('_', '-')} does not go with {options.runs}: it is fitted already")
        fitted = read_fit(options.runs)
        fitted.points(points)
        return fitted
    factors = None if options.factors is None else _names(options.factors, "--factors")
    groups = [] if options.group is None else _names(options.group, "--group")
    table = RunTable.read_csv(options.runs, options.time, factors, groups)
    read_points(table, points)
    settings = FitSettings(seed=options.seed or 0)
    if options.budget_s is not None:
        settings = replace(settings, budget_s=options.budget_s)
    with _bar(sys.stderr.isatty()) as tell:
        return fit_runs(table, settings, tell)


@contextmanager
def _bar(is_shown: bool) -> Iterator[Callable[[float, str], None] | None]:
    """A progress bar on standard error."""
    if not is_shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("terms", total=1.0)
        yield lambda share, what: progress.update(task, completed=share, description=what)


def _names(given: str, option: str) -> list[str]:
    names = [_unquoted(name) for name in _split(given, ",")]
    if not all(names):
        raise UsageError(f"{option} {given!r}: expected names of columns with a comma between two")
    return names


def _split(given: str, mark: str) -> list[str]:
    """The parts between marks that are not within double quotes."""
    return re.split(rf'{mark}(?=(?:[^"]*"[^"]*")*[^"]*$)', given)


def _unquoted(word: str) -> str:
    word = word.strip()
    quoted = len(word) > 1 and word[0] == word[-1] == '"'
    return word[1:-1].replace('""', '"').strip() if quoted else word


def _point(given: str) -> dict[str, str]:
    """Read ``gpus=16,model=bert``."""
    found = dict[str, str]()
    for part in _split(given, ","):
        name, equals, value = (_unquoted(word) for word in part.partition("="))
        if not name or not equals or not value:
            raise UsageError(
                f"--predict {shown(given)}: expected names with values, such as gpus=16,batch=64; "
                'a value with a comma in quotes, such as model="a,b"'
            )
        if name in found:
            raise UsageError(f"--predict {shown(given)}: {name} is there twice")
        found[name] = value
    return found
