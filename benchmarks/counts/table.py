"""What is kept of each program: ``executed.csv.xz``, to which several processes may add at once."""

from __future__ import annotations

import csv
import fcntl
import io
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from benchmarks.counts.instructions import KINDS
from benchmarks.counts.programs import Case

ROWS = Path(__file__).with_name("executed.csv.xz")
_CASE = tuple(one.name for one in fields(Case))
_COLUMNS = (
    *_CASE,
    "known",
    "worst",
    "error",
    *(f"executed_{kind}" for kind in KINDS),
    *(f"counted_{kind}" for kind in KINDS),
)


@dataclass(frozen=True)
class Row(Case):
    """A case with its counts."""

    executed: Mapping[str, int] = field(default_factory=dict)
    """By kind."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """By kind, as the reader says."""
    known: bool = True
    """False where the reader says that its count is an estimate."""
    worst: str = ""
    """Where the two differ most: function, block, its runs and those that are counted."""
    error: str = ""
    """Why nothing is known; the program did not run or could not be read."""

    def ratio(self, kind: str = "instructions") -> float:
        """Counted to executed; 1 where both are none."""
        if not self.executed[kind]:
            return 1.0 if not self.counted[kind] else float("inf")
        return self.counted[kind] / self.executed[kind]


def read_rows(path: Path = ROWS) -> list[Row]:
    """What is kept, in the order of the keys; of a case that was counted again only the last."""
    if not path.exists():
        return []
    with lzma.open(path, "rt", newline="") as file:
        rows = [_row(line) for line in csv.DictReader(file, _COLUMNS)]
    return [row for _, row in sorted({row.key: row for row in rows}.items())]


def add_rows(rows: Sequence[Row], path: Path = ROWS) -> None:
    """Add rows; several processes may do so at once."""
    with _locked(path), path.open("ab") as file:
        file.write(lzma.compress(_text(rows)))


def write_rows(change: Callable[[list[Row]], list[Row]] = lambda rows: rows, path: Path = ROWS) -> list[Row]:
    """Write all rows anew, as small as they get, once changed; returns them."""
    with _locked(path):
        rows = change(read_rows(path))
        path.write_bytes(lzma.compress(_text(rows), preset=9))
    return rows


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _text(rows: Sequence[Row]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        case = [getattr(row, name) for name in _CASE]
        counts = [amounts.get(kind, "") for amounts in (row.executed, row.counted) for kind in KINDS]
        writer.writerow([*case, int(row.known), row.worst, row.error, *counts])
    return out.getvalue().encode()


def _row(line: Mapping[str, str]) -> Row:
    case = {name: line[name] for name in ("name", "op_class", "origin", "mcpu", "schedule")}

    def amounts(side: str) -> dict[str, int]:
        return {kind: int(line[f"{side}_{kind}"]) for kind in KINDS if line[f"{side}_{kind}"]}

    return Row(
        **case,
        draw=int(line["draw"]),
        place=int(line["place"]),
        executed=amounts("executed"),
        counted=amounts("counted"),
        known=line["known"] == "1",
        worst=line["worst"],
        error=line["error"],
    )


def fields_of(case: Case) -> dict[str, object]:
    """What a row takes over of its case."""
    return {name: value for name, value in asdict(case).items() if name in _CASE}
