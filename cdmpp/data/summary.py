"""Which data sets are here, and how much each holds. Reads three columns; needs no TVM for data sets of our own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from cdmpp.data import sources
from cdmpp.data.statistics import DeviceStatistics, statistics
from cdmpp.errors import CdmppError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSummary:
    """What one folder holds for one device."""

    folder: Path
    device: str
    form: str
    """``records`` (a data set of ours), ``metaschedule`` (a tuning database, not imported yet) or ``unreadable``."""
    programs: int | None = None
    """Distinct programs; None where only an import can tell."""
    tasks: int | None = None
    note: str = ""


def search_paths(extra: Sequence[Path] = ()) -> list[Path]:
    """Where data is looked for: ``extra``, ``./datasets``, a checkout's, the folders in ``$CDMPP_DATA``."""
    root = Path(__file__).resolve().parents[2]
    checkout = root / "datasets" if (root / "pyproject.toml").is_file() else Path("datasets")
    found = [path.resolve() for path in sources.search_paths([*extra, Path("datasets"), checkout]) if path.is_dir()]
    return list(dict.fromkeys(found))


def summarise(paths: Sequence[Path]) -> list[DataSummary]:
    """One entry per folder and device, ordered by device and folder; a damaged folder is told, not hidden."""
    folders = sorted({info.parent for path in paths for info in path.rglob("dataset.json")})
    entries = [entry for folder in folders for entry in _own(folder)] + _databases(paths)
    return sorted(entries, key=lambda entry: (entry.device, str(entry.folder)))


def details(entries: Sequence[DataSummary]) -> list[tuple[Path, DeviceStatistics]]:
    """(folder, statistics) of every readable data set of ours among ``entries``."""
    found = []
    for folder in dict.fromkeys(entry.folder for entry in entries if entry.form == "records"):
        try:
            found += [(folder, device) for device in statistics(folder)]
        except CdmppError as error:
            log.warning("%s: %s", folder, error)
    return sorted(found, key=lambda pair: pair[1].device)


def _own(folder: Path) -> list[DataSummary]:
    seen: dict[str, tuple[set[str], set[str]]] = {}
    try:
        for part in sorted((folder / "records").glob("part-*.parquet")):
            columns = pq.ParquetFile(part).read(columns=["record_id", "task_id", "device"]).to_pydict()
            for record, task, device in zip(*columns.values(), strict=True):
                programs, tasks = seen.setdefault(device, (set(), set()))
                programs.add(record)
                tasks.add(task)
    except Exception as error:  # pyarrow raises its own types for each way a file can be damaged
        return [DataSummary(folder, "?", "unreadable", note=" ".join(str(error).split())[:120])]
    return [
        DataSummary(folder, device, "records", len(programs), len(tasks)) for device, (programs, tasks) in seen.items()
    ]


def _databases(paths: Sequence[Path]) -> list[DataSummary]:
    """Raw tuning databases, with the device each counts for."""
    entries = []
    for found in sources.survey(paths):
        if found.raw:
            for device in found.counts or {"?": 0}:
                entries.append(DataSummary(found.path, device, "metaschedule", note=found.unclear))
    return entries
