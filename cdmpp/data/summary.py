"""Labelled data within reach, and how much each folder holds: read without TVM, from three columns."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp import devices
from cdmpp.data.records import count_records, read_info
from cdmpp.data.statistics import DeviceStatistics, statistics
from cdmpp.data.targets import disagreement, first_target
from cdmpp.errors import CdmppError

log = logging.getLogger(__name__)
Paths = Sequence[Path | str]

DATABASE_FILES = ("database_tuning_record.json", "database_workload.json")
_DEPTH = 4
_SKIPPED = {"node_modules", "outputs", "__pycache__", "build", "dist"}


@dataclass(frozen=True)
class DataSummary:
    """These numbers say what one folder holds for one device."""

    folder: Path
    device: str  # ``?`` where it is not clear
    form: str
    """``records`` (a data set of ours), ``metaschedule`` (a tuning database, not imported yet) or ``unreadable``."""
    programs: int | None = None  # distinct programs; None where only an import can tell
    tasks: int | None = None
    note: str = ""  # why a database cannot be imported unless device or network is given, or what is damaged
    network: str = ""  # of a database
    features: str = "cdmpp"  # kind of leaf vectors, see ``layout.FEATURES``


def search_paths(paths: Paths = ()) -> list[Path]:
    """List ``paths`` and the folders in ``$CDMPP_DATA`` (separated by ``os.pathsep``), each once."""
    extra = [entry for entry in os.environ.get("CDMPP_DATA", "").split(os.pathsep) if entry.strip()]
    return list(dict.fromkeys(Path(path).expanduser() for path in [*paths, *extra]))


def known_paths(extra: Sequence[Path] = ()) -> list[Path]:
    """List existing folders: ``extra``, ``./datasets``, a checkout's ``datasets`` and ``$CDMPP_DATA``."""
    root = Path(__file__).resolve().parents[2]
    checkout = [root / "datasets"] if (root / "pyproject.toml").is_file() else []
    paths = search_paths([*extra, Path("datasets"), *checkout])
    return list(dict.fromkeys(path.resolve() for path in paths if path.is_dir()))


def summarise(paths: Paths) -> list[DataSummary]:
    """Return one entry per folder and device below ``paths``, a few levels deep, in a fixed order.

    A damaged folder is an entry, too.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        for folder in _data_folders(Path(path), _DEPTH):
            folders.setdefault(folder.resolve(), folder)
    return [entry for folder in folders.values() for entry in _entries(folder)]


def details(entries: Sequence[DataSummary]) -> list[tuple[Path, DeviceStatistics]]:
    """Return (folder, statistics) of every readable data set of ours among ``entries``, by device."""
    pairs = []
    for folder in dict.fromkeys(entry.folder for entry in entries if entry.form == "records"):
        try:
            pairs += [(folder, device) for device in statistics(folder)]
        except CdmppError as error:
            log.warning("%s: %s", folder, error)
    return sorted(pairs, key=lambda pair: pair[1].device)


def name_parts(folder_name: str) -> tuple[str, str]:
    """Return the (network, device) that a database folder's name tells, each empty where it does not.

    ``<network>_<device>[_...]``; of public collections also ``meta_<backend>_<device>_<network>_<trials>``.
    """
    words = folder_name.lower().split("_")
    places = [place for place, word in enumerate(words) if word in devices.names()]
    if len(places) != 1:
        return "", ""
    (place,) = places
    rest = [word for word in words[place + 1 :] if not re.fullmatch(r"\d+k", word)]
    return "_".join(rest if words[0] == "meta" else words[:place]), words[place]


def _data_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Data sets and databases in ``folder`` and below."""
    try:
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        log.warning("skipped %s: %s", folder, error)
        return
    if "dataset.json" in names or all(name in names or f"{name}.gz" in names for name in DATABASE_FILES):
        yield folder
    elif depth:
        for name in sorted(name for name in names if not name.startswith(".") and name not in _SKIPPED):
            yield from _data_folders(folder / name, depth - 1)


def _entries(folder: Path) -> list[DataSummary]:
    if not (folder / "dataset.json").exists():
        return [_database(folder)]
    try:
        features = str(read_info(folder).get("features", "cdmpp"))
        counts = count_records(folder)
    except CdmppError as error:
        log.warning("skipped %s: %s", folder, error)
        return [DataSummary(folder, "?", "unreadable", note=" ".join(str(error).split())[:120])]
    if not counts and any((folder / "records").glob("part-*")):
        return [DataSummary(folder, "?", "unreadable", note="its records are corrupt or truncated")]
    return [DataSummary(folder, device, "records", *count, features=features) for device, count in counts.items()]


def _database(folder: Path) -> DataSummary:
    network, device = name_parts(folder.name)
    if not device or not network:
        return DataSummary(folder, "?", "metaschedule", note="the folder name is not <network>_<device>[_...]")
    try:
        reason = disagreement(device, first_target(folder), exact=True)
    except CdmppError as error:
        reason = str(error)
    return DataSummary(folder, "?" if reason else device, "metaschedule", note=reason, network=network)
