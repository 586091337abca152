"""RunTable: timed runs, a row each: the values of factors, the seconds, and the group that the run belongs to."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import DataError, UsageError, some
from cdmpp.expression.columns import LAYERED, is_rate, is_time, name_in_seconds, role_of, seconds_of
from cdmpp.expression.factor import factors_of
from cdmpp.platform.limits import shown

Floats = npt.NDArray[np.float64]
_WILD = 2.0
"""Runs of the same configuration whose times differ by more than this factor contradict each other."""
_MOST_ROWS = 20_000
SMALLEST, LARGEST = 1e-30, 1e30
"""Times and factors outside of this are a slip; products of their powers would leave the range of numbers."""
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
        return RunTable(factors, self.times_s[kept], self.group_names, labels, self.time_name, self.warnings)

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
        warnings = list[str]()
        if factors is None:
            factors, left_out = _recognised(columns, time, groups, lines)
            warnings += left_out
        if not factors:
            raise UsageError("no factor is named and no column is recognised: name them, such as factors=gpus,batch")
        time_name = time
        if unit_s is None:
            unit_s, time_name, unsaid = _unit(time, [*factors, *groups])
            warnings += unsaid
        times_s = _numbers(time, columns[time], lines) * unit_s
        found = {name: _numbers(name, columns[name], lines) for name in factors}
        if len(times_s) > _MOST_ROWS:
            raise DataError(f"the table has {len(times_s)} rows: at most {_MOST_ROWS} are fitted, take a sample")
        labels = tuple(label_of(row) for row in zip(*(columns[name] for name in groups), strict=True))
        for name in factors:
            if len(np.unique(found[name])) < 2:
                if len(times_s) and _is_known(name, factors):
                    warnings.append(
                        f"{name} is {found[name][0]:g} in all rows: how times depend on it is taken from what is known "
                        "of layers and stages, not from these runs"
                    )
                    continue
                value = f"is {found[name][0]:g} in all rows" if len(times_s) else "has no rows"
                raise UsageError(f"factor {name} {value}: it says nothing of the time, leave it out or vary it")
        table = cls(found, times_s, tuple(groups), labels, time_name, ())
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


def label_of(values: Sequence[Any]) -> str:
    """Return the name of the group of these values: ``bert/8`` for bert and 8, 8.0 or the text 8."""
    texts = [f"{one:g}" if isinstance(one, int | float | np.number) else str(one).strip() for one in values]
    return "/".join(text.replace("/", "|") for text in texts)


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


def number_of(value: Any) -> float:
    """Return a number that is given as one or as text; ``ValueError`` for what is none, ``1_6`` among it."""
    if isinstance(value, str) and "_" in value:
        raise ValueError(value)
    return float(value)


def _recognised(
    columns: Mapping[str, Any], time: str, groups: Sequence[str], lines: Sequence[int] | None
) -> tuple[list[str], list[str]]:
    """Columns that are recognised and vary, and what is said of the others; all numeric ones where none is.

    ``DataError`` names a hole in such a column: it is not left out for that.
    """
    others = [name for name in columns if name != time and name not in groups]
    found = [name for name in others if role_of(name).name] or [name for name in others if not is_time(name)]
    kept, said = list[str](), list[str]()
    for name in found:
        if not _has_numbers(columns[name], zeros=not role_of(name).name):
            continue
        try:
            values = np.unique(_numbers(name, columns[name], lines))
        except DataError as error:
            raise DataError(f"{error}; or name the factors without {name}") from error
        if len(values) > 1 or _is_known(name, found):
            kept.append(name)
    if left := [name for name in others if name not in kept]:
        said.append(f"columns that were not taken as factors: {some(left, ', ')}")
    return kept, said


def _has_numbers(values: Any, *, zeros: bool) -> bool:
    """Tell if a column is one of positive numbers, but for holes. ``zeros``: numbers that are not positive tell not."""
    has_number = False
    for value in values:
        try:
            number = number_of(value)
        except (TypeError, ValueError):
            continue
        if zeros and math.isfinite(number) and number <= 0:
            return False
        has_number = has_number or (math.isfinite(number) and number > 0)
    return has_number


def _is_known(name: str, factors: Sequence[str]) -> bool:
    """Tell if the effect of a column that never varies is known: a size of layers, or part of a derived factor."""
    return role_of(name).name in (*LAYERED, "pp") or any(
        name in one.columns for one in factors_of(factors) if one.kind != "column"
    )


def _numbers(name: str, values: Any, lines: Sequence[int] | None) -> Floats:
    """The values as positive numbers; ``DataError`` names the first row, or its line, that has none."""
    found = np.empty(len(values))
    for row, value in enumerate(values):
        where = f"column {name}, row {row + 1}" if lines is None else f"column {name}, line {lines[row]}"
        try:
            found[row] = number_of(value)
        except (TypeError, ValueError):
            if not str(value).strip():
                raise DataError(f"{where} has no value: leave out rows without a value") from None
            raise DataError(f"{where}: {shown(value)} is no number; a column of texts can be a group") from None
        if not math.isfinite(found[row]):
            raise DataError(f"{where}: {shown(value)}: leave out rows without a value")
        if found[row] <= 0:
            raise DataError(
                f"{where}: {found[row]:g} is not above 0; "
                "times and factors are positive, and a column of flags can be a group"
            )
        if not SMALLEST <= found[row] <= LARGEST:
            raise DataError(f"{where}: {shown(value)} is out of range: expected {SMALLEST:g} to {LARGEST:g}")
    return found


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
