"""RunTable: timed runs, a row each: the values of factors, the seconds, and the group that the run belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdmpp.errors import DataError, UsageError, some
from cdmpp.expression.cells import numbers_of
from cdmpp.expression.columns import unit_of
from cdmpp.expression.factor_choice import FactorChoice, has_known_effect
from cdmpp.expression.group_label import labels_of
from cdmpp.expression.job_rules import JobRules
from cdmpp.expression.run_file import RunFile
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
        _check_names(columns, [time, *(factors or ()), *groups], time)
        fixed, warnings = dict[str, float](), list[str]()
        if factors is None:
            choice = FactorChoice.of(columns, time, groups, lines)
            factors, fixed, warnings = choice.names, dict(choice.fixed), [*choice.warnings]
        if not factors:
            raise UsageError("no factor is named and no column is recognised: name them, such as factors=gpus,batch")
        time_name = time
        if unit_s is None:
            unit_s, time_name = unit_of(time, [*factors, *groups])
        if unit_s is None:
            warnings.append(f"times of {time} are taken as seconds: its name has no unit, such as {time}_ms has")
        times_s = numbers_of(time, columns[time], lines) * (unit_s or 1.0)
        _check_times(time, times_s)
        found = {name: numbers_of(name, columns[name], lines) for name in factors}
        labels = labels_of(columns, groups, lines)
        warnings += [said for name in factors if (said := _constancy(name, found[name]))]
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
        file = RunFile.read(path)
        try:
            return cls.of(file.columns, file.time if time is None else time, factors, groups, lines=file.lines)
        except (UsageError, DataError) as error:
            raise type(error)(f"{path}: {error}") from error


def _check_names(columns: Mapping[str, Any], named: Sequence[str], time: str) -> None:
    """Refuse columns that are missing, named twice, or not as long as that of times."""
    if missing := [name for name in named if name not in columns]:
        raise UsageError(f"there is no column {shown(missing[0])}: expected {some(list(columns), ', ', 30)}")
    if twice := [name for place, name in enumerate(named) if name in named[:place]]:
        raise UsageError(f"column {shown(twice[0])} is named twice: a column is a time, a factor or a group")
    if odd := [name for name in named if len(columns[name]) != len(columns[time])]:
        counts = f"{len(columns[odd[0]])} values and {time} {len(columns[time])}"
        raise DataError(f"column {odd[0]} has {counts}: give each column a value for each run")


def _check_times(time: str, times_s: Floats) -> None:
    """Refuse more runs than can be fitted, and times that are all the same."""
    if len(times_s) > _MOST_ROWS:
        raise DataError(f"the table has {len(times_s)} rows: at most {_MOST_ROWS} are fitted, take a sample")
    if len(times_s) > 1 and len(np.unique(times_s)) < 2:
        raise DataError(f"time {time} is {times_s[0]:.6g} s in all rows: no factor changes it, nothing can be fitted")


def _constancy(name: str, values: Floats) -> str | None:
    """Return what is said of a factor that never varies; ``UsageError`` where its effect is not known."""
    if len(np.unique(values)) > 1:
        return None
    if not len(values):
        raise UsageError(f"factor {name} has no rows: it says nothing of the time, leave it out or vary it")
    if not has_known_effect(name):
        told = f"is {values[0]:g} in all rows: it says nothing of the time, leave it out or vary it"
        raise UsageError(f"factor {name} {told}")
    return (
        f"{name} is {values[0]:g} in all rows: how times depend on it is taken from what is known of layers and "
        "stages, not from these runs"
    )


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
