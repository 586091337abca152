"""RunFile: a CSV file of runs, its cells by column, with the line that each row is from."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import DataError, UsageError
from cdmpp.expression.columns import is_time
from cdmpp.platform.limits import shown


@dataclass(frozen=True)
class RunFile:
    """The cells of a file. All rows have as many as the head, and no two columns have the same name."""

    columns: Mapping[str, Sequence[str]]
    """Name -> cells, one a run."""
    lines: tuple[int, ...]
    """The line of the file that each run is from."""

    @classmethod
    def read(cls, path: str | Path) -> RunFile:
        """Read a file with a head and two runs or more; blank lines are left out.

        Raises:
            DataError: the file cannot be read, or a row has more or fewer cells than the head.
        """
        try:
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
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
        return cls(columns, tuple(number for number, _ in lines[1:]))

    @property
    def time(self) -> str:
        """Return the only column that is named like a time; ``UsageError`` where there is none, or several."""
        times = [name for name in self.columns if is_time(name)]
        if len(times) != 1:
            seen = f"{', '.join(times)} are" if times else "no column is"
            raise UsageError(f"{seen} named like times: say which, such as time=step_s")
        return times[0]
