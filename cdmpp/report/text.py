"""Text: reports on a terminal, or as lines in a file or pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cdmpp.report.report import Column, Report, Row, Table, Total
from cdmpp.units import visible

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 220
"""Letters of a line that goes to a file or pipe, so that no column is cut there."""
_LONGEST = 40
"""Letters of a cell with a name."""
_LABEL = 10
"""Letters before the numbers of the totals."""


def console() -> Console:
    """Return the console of standard output, of a fixed width where that is no terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def print_report(report: Report, rows: int = 0) -> None:
    """Print one report; ``rows`` rows of each table, 0: all."""
    _print(report, rows, console())


def print_table(table: Table) -> None:
    """Print one table, all rows of it."""
    _print_table(table, 0, console())


def text_of(report: Report, rows: int = 0, width: int = _PIPE_WIDTH) -> str:
    """Return the text that ``print_report`` prints."""
    from rich.console import Console

    with (made := Console(width=width)).capture() as capture:
        _print(report, rows, made)
    return capture.get()


def _print(report: Report, rows: int, console: Console) -> None:
    lines = [visible(report.title), *map(_line, report.totals)]
    lines += [f"{'' if place else 'settings':<{_LABEL}} {visible(line)}" for place, line in enumerate(report.code)]
    if report.totals or report.code:
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    else:  # a list has no other title
        console.print(visible(report.title), markup=False, highlight=False, style="italic")
    for table in report.tables:
        _print_table(table, rows, console)


def _line(total: Total) -> str:
    return visible(f"{total.name:<{_LABEL}} {total.text}")


def _print_table(table: Table, most: int, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table as RichTable

    rows = table.rows[:most] if most else table.rows
    rest = table.rows[len(rows) :]
    cells = {column: [_short(column, row) for row in rows] for column in table.shown_columns}
    if rest:
        sums = table.rest(rest)
        first = next(iter(cells))
        for column, texts in cells.items():
            texts.append(column.cell(sums))
        cells[first][-1] = f"{len(rest)} more (--rows 0 shows all)"
    cells = _fitting(cells, console.width)
    drawn = RichTable(title=escape(visible(table.title)), caption=escape(visible(table.caption)) or None)
    for place, (column, texts) in enumerate(cells.items()):
        whole = not place and all(len(text) <= 24 for text in texts)  # names that tell rows apart are never cut
        side = "right" if column.kind == "number" else "left"
        drawn.add_column(escape(column.name), justify=side, overflow="fold", no_wrap=whole)  # type: ignore[arg-type]
    for place, line in enumerate(zip(*cells.values(), strict=True)):
        drawn.add_row(*map(escape, line), style="bold" if place == table.strong else "")
    console.print(drawn)


def _short(column: Column, row: Row) -> str:
    text = column.cell(row)
    return f"{text[: _LONGEST - 1]}…" if column.kind == "name" and len(text) > _LONGEST else text


def _fitting(cells: dict[Column, list[str]], width: int) -> dict[Column, list[str]]:
    """The columns for which there is room, with a margin of 3 each."""
    kept = dict(cells)
    for dropped in sorted((column for column in cells if column.rank), key=lambda column: -column.rank):
        if sum(map(_width, kept, kept.values())) < width:
            break
        del kept[dropped]
    return kept


def _width(column: Column, texts: list[str]) -> int:
    """Letters that a column needs; long texts can be folded."""
    widest = max(map(len, (column.name, *texts)))
    return 3 + (widest if column.kind == "number" else min(widest, _LONGEST))
