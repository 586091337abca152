"""Report: what a result says, in one form that every writer takes: totals, tables, charts, a timeline, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdmpp.report.charts import Chart
from cdmpp.report.timeline import TimelineSpan
from cdmpp.units import percent, shown, span

Row = Mapping[str, Any]
Interval = tuple[float, float, float]
"""Level, lower and upper bound: ``(0.8, 1e-3, 2e-3)``; bounds are in the unit of the number that they belong to."""


@dataclass(frozen=True)
class Total:
    """A total is a labelled quantity of a whole result."""

    name: str
    value: float | str | None = None
    """A number in ``unit``, or a text; None where only the parts or the note speak."""
    unit: str = ""
    digits: int = 3
    share: float | None = None
    """Share of the whole that ``value`` is a part of, from 0 to 1."""
    interval: Interval | None = None
    parts: tuple[Total, ...] = ()
    """Quantities that ``value`` is made of."""
    note: str = ""
    """A remark that follows the number."""

    @property
    def number(self) -> str:
        """Return the value with its unit, without anything else."""
        return "" if self.value is None else shown(self.value, self.unit, self.digits)

    @property
    def details(self) -> str:
        """Return share, interval, parts and note, in this order."""
        share = [] if self.share is None else [percent(self.share)]
        if self.interval is not None:
            level, low, high = self.interval
            share.append(f"{100 * level:g} %: {span(low, high, self.unit)}")
        parts = ", ".join(f"{part.name} {part.text}" for part in self.parts)
        return "; ".join(filter(None, (", ".join(share), parts, self.note)))

    @property
    def text(self) -> str:
        """Return the number, with the details in brackets where there are both."""
        number, details = self.number, self.details
        return f"{number} ({details})" if number and details else number or details


@dataclass(frozen=True)
class Column:
    """A column of a table shows this of a row, in this way."""

    key: str
    """The key in the rows, which has the unit in its name."""
    name: str
    """The heading."""
    unit: str = ""
    """The unit, as ``units.shown`` takes it."""
    kind: Literal["number", "text", "name"] = "number"
    """A name may be long: a terminal shows its first letters."""
    digits: int = 3
    meaning: str = ""
    """A sentence for readers who do not know the heading."""
    is_optional: bool = False
    """True if the column is left out where no row has a value."""
    is_sum: bool = False
    """True if the values of several rows add up."""
    rank: int = 0
    """0: always shown; of the others those with the highest go first where a terminal is narrow."""

    def cell(self, row: Row) -> str:
        """Return the value of a row with its unit; empty where the row has none of this name."""
        return shown(row[self.key], self.unit, self.digits) if self.key in row else ""


@dataclass(frozen=True)
class Table:
    """A table has rows of one kind."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    """They may have more keys than columns: CSV files have all."""
    caption: str = ""
    strong: int | None = None
    """Place of a row to stand out."""

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """Return the columns that say something of the rows."""
        return tuple(one for one in self.columns if not one.is_optional or any(row.get(one.key) for row in self.rows))

    def rest(self, rows: Sequence[Row]) -> Row:
        """Make one row for several: the sums of what adds up."""
        return {one.key: sum(row[one.key] for row in rows) for one in self.columns if one.is_sum}


@dataclass(frozen=True)
class Report:
    """A report is one result, ready to be shown: numbers, tables, charts and warnings."""

    title: str
    answer: Any = None
    """All numbers as JSON takes them; units are in the names of the keys."""
    totals: tuple[Total, ...] = ()
    tables: tuple[Table, ...] = ()
    """The first one is what a CSV file holds."""
    warnings: tuple[str, ...] = ()
    """Sentences to read before trusting the numbers."""
    timeline: tuple[TimelineSpan, ...] | None = None
    """The spans of everything that ran; None where a result has no such order."""
    charts: tuple[Chart, ...] = ()
    code: tuple[str, ...] = ()
    """Lines of Python that realise the result."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Term -> what it means, for those that head no column."""
