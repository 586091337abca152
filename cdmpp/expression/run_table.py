"""RunTable: timed runs, a row each: the values of factors, the seconds, and the group that the run belongs to."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import DataError, UsageError, some
from cdmpp.expression.cells import has_numbers, numbers_of
from cdmpp.expression.columns import LAYERED, is_rate, is_time, name_in_seconds, role_of, seconds_of
from cdmpp.expression.group_label import label_of
from cdmpp.expression.job_rules import JobRules
from cdmpp.platform.limits import shown

Floats = npt.NDArray[np.float64]
_WILD = 2.0
"""Runs of the same configuration whose times differ by more than this factor contradict each other."""
_MOST_ROWS = 20_000
_ALL = ""
"""Label of the only group of a table without groups."""


@dataclass(frozen=True)
class RunTable:
    """A table of runs. All numbers are positive, and no row is missing a value.

    All factors vary, but for sizes of layers, whose effect is known.
    """

    factors: Mapping[str, Floats]
    """Name of a factor -> its value in each run, shape ``(rows,)``."""
    times_s: Floats
    """Seconds of each run, shape ``(rows,)``."""
    group_names: tuple[str, ...] = ()
    """Names of the categorical columns that say to which group a run belongs."""
    labels: tuple[str, ...] = ()
    """The group of each run; runs of a group share constants, all groups share exponents."""
    time_name: str = "time_s"
    """Name of the column of times, in seconds."""
    warnings: tuple[str, ...] = ()
    """Sentences about the data that a reader should know."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Recognised columns that never vary and so are no factors, with their value: nothing is known of another one."""
    codes: npt.NDArray[np.intp] = field(init=False, repr=False, compare=False)
    """Place of the group of each run in ``groups``, whole numbers of shape ``(rows,)``."""

    def __post_init__(self) -> None:
        labels = self.labels or (_ALL,) * len(self.times_s)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "codes", np.unique(labels, return_inverse=True)[1])

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Return the groups in alphabetical order; one without a name where the table has none."""
        return tuple(map(str, np.unique(self.labels)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the factors."""
        return tuple(self.factors)

    @property
    def values(self) -> Floats:
        """Return all values, shape ``(rows, factors)``."""
        return np.column_stack(list(self.factors.values())) if self.factors else np.empty((len(self.times_s), 0))

    def __len__(self) -> int:
        return len(self.times_s)

    def at(self, rows: npt.NDArray[np.intp]) -> dict[str, Floats]:
        """Return the values of the factors in some rows."""
        return {name: values[rows] for name, values in self.factors.items()}

    def rows(self, kept: npt.NDArray[Any]) -> RunTable:
        """Return the table of some rows, by a mask or by places. A factor need not vary in it."""
        factors = {name: values[kept] for name, values in self.factors.items()}
        labels = tuple(np.asarray(self.labels)[kept].tolist())
        times_s = self.times_s[kept]
        return RunTable(factors, times_s, self.group_names, labels, self.time_name, self.warnings, self.fixed)

    @cached_property
    def rules(self) -> JobRules:
        """Return what the counts of all runs keep."""
        return JobRules.of(self.factors)

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        time: str,
        factors: Sequence[str] | None = None,
        groups: Sequence[str] = (),
        *,
        unit_s: float | None = None,
        lines: Sequence[int] | None = None,
    ) -> RunTable:
        """Make a table of columns.

        Args:
            columns: name -> values, one a run.
            time: name of the column of times; ``_ms`` or another unit at its end says what they are in, else seconds,
                which is said.
            factors: names of the columns that the time depends on; None: those that are recognised, or all numeric
                ones where none is.
            groups: names of categorical columns.
            unit_s: seconds that 1 in the column of times is, whatever its name says, and the name is kept; None: as the
                name says.
            lines: the line of a file that each row is from, for messages.

        Raises:
            UsageError: a column that is not there or is named twice; a factor that never varies; a rate as the time.
            DataError: values that cannot be: text, NaN, times or factors that are not positive.
        """
        named = [time, *(factors or ()), *groups]
        if missing := [name for name in named if name not in columns]:
            raise UsageError(f"there is no column {shown(missing[0])}: expected {some(list(columns), ', ', 30)}")
        if twice := [name for place, name in enumerate(named) if name in named[:place]]:
            raise UsageError(f"column {shown(twice[0])} is named twice: a column is a time, a factor or a group")
        if odd := [name for name in named if len(columns[name]) != len(columns[time])]:
            counts = f"{len(columns[odd[0]])} values and {time} {len(columns[time])}"
            raise DataError(f"column {odd[0]} has {counts}: give each column a value for each run")
        warnings, fixed = list[str](), dict[str, float]()
        if factors is None:
            factors, fixed, left_out = _recognised(columns, time, groups, lines)
            warnings += left_out
        if not factors:
            raise UsageError("no factor is named and no column is recognised: name them, such as factors=gpus,batch")
        time_name = time
        if unit_s is None:
            unit_s, time_name, unsaid = _unit(time, [*factors, *groups])
            warnings += unsaid
        times_s = numbers_of(time, columns[time], lines) * unit_s
        found = {name: numbers_of(name, columns[name], lines) for name in factors}
        if len(times_s) > _MOST_ROWS:
            raise DataError(f"the table has {len(times_s)} rows: at most {_MOST_ROWS} are fitted, take a sample")
        if len(times_s) > 1 and len(np.unique(times_s)) < 2:
            raise DataError(
                f"time {time} is {times_s[0]:.6g} s in all rows: no factor changes it, nothing can be fitted"
            )
        labels = _labels(columns, groups, lines)
        for name in factors:
            if len(np.unique(found[name])) < 2:
                if len(times_s) and _is_known(name):
                    warnings.append(
                        f"{name} is {found[name][0]:g} in all rows: how times depend on it is taken from what is known "
                        "of layers and stages, not from these runs"
                    )
                    continue
                value = f"is {found[name][0]:g} in all rows" if len(times_s) else "has no rows"
                raise UsageError(f"factor {name} {value}: it says nothing of the time, leave it out or vary it")
        table = cls(found, times_s, tuple(groups), labels, time_name, (), fixed)
        return replace(table, warnings=(*warnings, *_contradictions(table)))

    @classmethod
    def read_csv(
        cls,
        path: str | Path,
        time: str | None = None,
        factors: Sequence[str] | None = None,
        groups: Sequence[str] = (),
    ) -> RunTable:
        """Read a CSV file with a head; arguments as of ``of``, and ``time`` may be left out where one column is a time.

        Raises:
            DataError: the file cannot be read, or a row has more or fewer cells than the head.
        """
        path = Path(path)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                read = [(reader.line_num, row) for row in reader]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        lines = [(number, row) for number, row in read if any(cell.strip() for cell in row)]
        if len(lines) < 3:
            count = "one row" if len(lines) == 2 else "no rows"
            raise DataError(f"{path} has {count}: expected a head such as gpus,batch,step_s and lines of several runs")
        head = [name.strip() for name in lines[0][1]]
        if len(head) == 1 and (other := next((mark for mark in ";\t|" if mark in head[0]), None)):
            raise DataError(f"{path} has {other!r} between its cells: write it with commas")
        if twice := [name for place, name in enumerate(head) if name in head[:place]]:
            raise DataError(f"{path}: the head has {shown(twice[0])} twice")
        for number, row in lines[1:]:
            if len(row) != len(head):
                raise DataError(f"{path}, line {number}: {len(row)} cells, expected {len(head)} as the head has")
        columns = {name: [row[place].strip() for _, row in lines[1:]] for place, name in enumerate(head)}
        if time is None:
            times = [name for name in head if is_time(name)]
            if len(times) != 1:
                seen = f"{', '.join(times)} are" if times else "no column is"
                raise UsageError(f"{path}: {seen} named like times: say which, such as time=step_s")
            time = times[0]
        try:
            return cls.of(columns, time, factors, groups, lines=[number for number, _ in lines[1:]])
        except (UsageError, DataError) as error:
            raise type(error)(f"{path}: {error}") from error


def _unit(time: str, others: Sequence[str]) -> tuple[float, str, list[str]]:
    """Seconds of 1 in a column of times, its name in seconds, and what is said where its name has no unit."""
    if is_rate(time):
        raise UsageError(f"column {shown(time)} is a rate by its name, no time: name a column of times")
    unit_s, name = seconds_of(time), name_in_seconds(time)
    if name != time and name in others:
        raise UsageError(f"column {shown(time)} in seconds is {shown(name)}, as another one: rename one")
    if unit_s is None:
        return 1.0, name, [f"times of {time} are taken as seconds: its name has no unit, such as {time}_ms has"]
    return unit_s, name, []


def _labels(columns: Mapping[str, Any], groups: Sequence[str], lines: Sequence[int] | None) -> tuple[str, ...]:
    """The label of the group of each row; ``DataError`` names the first that has a value missing."""
    labels = list[str]()
    for row, values in enumerate(zip(*(columns[name] for name in groups), strict=True)):
        for name, value in zip(groups, values, strict=True):
            if value is None or value != value or not str(value).strip():
                where = f"row {row + 1}" if lines is None else f"line {lines[row]}"
                raise DataError(f"group {name}, {where} has no value: leave out rows without a value")
        labels.append(label_of(values))
    return tuple(labels)


def _recognised(
    columns: Mapping[str, Any], time: str, groups: Sequence[str], lines: Sequence[int] | None
) -> tuple[list[str], dict[str, float], list[str]]:
    """Columns that are recognised and vary, those that do not, and what is said; all numeric ones where none is known.

    ``DataError`` names a hole in such a column: it is not left out for that.
    """
    others = [name for name in columns if name != time and name not in groups]
    found = [name for name in others if role_of(name).name] or [name for name in others if not is_time(name)]
    kept, fixed, said = list[str](), dict[str, float](), list[str]()
    for name in found:
        if not has_numbers(columns[name], zeros=not role_of(name).name):
            continue
        try:
            values = np.unique(numbers_of(name, columns[name], lines))
        except DataError as error:
            raise DataError(f"{error}; or name the factors without {name}") from error
        if len(values) > 1 or _is_known(name):
            kept.append(name)
        elif len(values):
            fixed[name] = float(values[0])
    if fixed:
        values_ = ", ".join(f"{name} is {value:g}" for name, value in fixed.items())
        said.append(f"left out because they never vary: {values_}; runs with other values cannot be predicted")
    if left := [name for name in others if name not in kept and name not in fixed]:
        said.append(f"columns that were not taken as factors: {some(left, ', ')}")
    return kept, fixed, said


def _is_known(name: str) -> bool:
    """Tell if the effect of a column that never varies is known: a size of layers, or the stages of a pipeline."""
    return role_of(name).name in (*LAYERED, "pp")


def _contradictions(table: RunTable) -> list[str]:
    """Runs of one configuration whose times have little to do with each other."""
    if not len(table):
        return []
    keys = np.column_stack([table.values, table.codes])
    _, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.ravel()
    low, high = np.full(places.max() + 1, np.inf), np.zeros(places.max() + 1)
    np.minimum.at(low, places, table.times_s)
    np.maximum.at(high, places, table.times_s)
    wild = np.flatnonzero(high > _WILD * low)
    if not len(wild):
        return []
    first = np.flatnonzero(places == wild[0])[0]
    where = ", ".join(f"{name}={values[first]:g}" for name, values in table.factors.items())
    return [
        f"{len(wild)} configurations have runs that contradict each other by more than {_WILD:g} times, such as "
        f"{where} with {low[wild[0]]:.3g} to {high[wild[0]]:.3g} s: a factor that matters may be missing"
    ]
