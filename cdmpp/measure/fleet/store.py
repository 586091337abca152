"""The data set folder that several clients write: what it holds, and one way to add to it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.data.records import append_records, count_records, read_info, record_parts, write_info
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.platform.content import read_parquet
from cdmpp.platform.files import FAILURES_FILE, append_lines, read_lines
from cdmpp.platform.lock import writing


class FleetStore:
    """A store knows which programs of ``folder`` are recorded or failed, whoever wrote them. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        """``DataError`` where the folder holds programs of another kind."""
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._recorded: set[tuple[str, str]] = set()
        self._failed: set[tuple[str, str]] = set()
        self._read: set[Path] = set()
        self._failures_size = -1
        if (self.folder / "dataset.json").exists() and (kind := read_info(folder).get("features", "cdmpp")) != "cdmpp":
            raise DataError(
                f"{folder} holds programs with features={kind}, these have features=cdmpp: a data set is of one kind, "
                "give another folder, out=FOLDER"
            )

    def known(self, device: str) -> set[str]:
        """Return ids of the programs of ``device`` that need no more work."""
        with self._lock:
            self._look()
            return {key for key, name in self._recorded | self._failed if name == device}

    def keep(self, records: Sequence[Record], failures: Sequence[Mapping[str, Any]]) -> None:
        """Add records, and failures with ``id`` and ``device``; those that are there are not added again."""
        with self._lock, writing(self.folder, "records of a fleet", wait=True):
            self._look()
            new = [record for record in records if (record.record_id, record.device) not in self._recorded]
            append_records(self.folder, new)
            failed = [entry for entry in failures if (entry["id"], entry["device"]) not in self._failed]
            if failed:
                append_lines(self.folder / FAILURES_FILE, failed)

    def describe(self, devices: Sequence[str], protocols: Mapping[str, str], **fields: Any) -> None:
        """Bring ``dataset.json`` up to date."""
        with self._lock, writing(self.folder, "records of a fleet", wait=True):
            there = read_info(self.folder).get("devices", []) if (self.folder / "dataset.json").exists() else []
            write_info(self.folder, devices=sorted({*there, *devices}), protocols=dict(protocols), **fields)
            programs = sum(number for number, _ in count_records(self.folder).values())
            write_info(self.folder, programs=programs)

    def _look(self) -> None:
        for path in record_parts(self.folder):
            if path not in self._read:  # parts are replaced by better records of the same programs only
                table = read_parquet(path, ["record_id", "device"])
                columns = (table.column(name).to_pylist() for name in ("record_id", "device"))
                self._recorded |= set(zip(*columns, strict=True))
                self._read.add(path)
        path = self.folder / FAILURES_FILE
        if path.exists() and (size := path.stat().st_size) != self._failures_size:
            entries = [entry for entry in read_lines(path) if isinstance(entry, dict)]
            self._failed = {(str(e.get("id")), str(e.get("device"))) for e in entries}
            self._failures_size = size
