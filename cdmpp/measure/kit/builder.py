"""Builds an offline measurement kit: samples and compiles what a machine without compiler or network measures.

A kit folder grows as a data set folder does: plan, tasks and failures, and instead of records ``programs/`` (what is in
which part) and ``parts/`` (what is carried to the device). A rerun goes on where the last one stopped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdmpp import devices
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure import protocol, software
from cdmpp.measure.collection import Collection
from cdmpp.measure.kit import pack
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import build_reference_kernels
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject
from cdmpp.platform.files import read_json, read_table, write_json, write_table
from cdmpp.platform.limits import check_choice, shown
from cdmpp.platform.workers import run_many

KIT_FILE = "kit.json"
PART_PROGRAMS = 1500
"""Programs in a part, at most: what is lost where a part is."""
_PART_BYTES, _RESERVE = 16_000_000, 100_000
"""Largest size of a part, of which so much is kept free for its directory and tables."""
_CHECKS = 32
"""Tasks of which one kernel is compared with the result of the unscheduled task."""
_CHECK_ELEMENTS, _CHECK_FLOPS = 1 << 16, 2e8
"""Tasks with more output or work are not checked: their results would fill the part, or take minutes here."""


class KitBuilder(Collection):
    """A builder packs programs of one device into ``folder``: ``programs/`` says what is in which of ``parts/``."""

    def __init__(self, settings: MeasureSettings, folder: Path) -> None:
        super().__init__(settings, folder)
        self.cuda = settings.target["kind"] == "cuda"
        self.header = {"device": settings.device, "kind": "gpu" if self.cuda else "cpu", "target": self.target}
        self.staged: list[Subject] = []
        self._staged_bytes = 0
        self._checked = 0

    def _recall(self) -> None:
        path = self.folder / KIT_FILE
        if path.exists() and {key: read_json(path).get(key) for key in self.header} != self.header:
            raise CdmppError(f"{self.folder} holds a kit of another device or target: choose another kit_folder")
        write_json(path, self.header)
        for entry in packed_programs(self.folder):
            self.journal.record(entry["record_id"], entry["task_id"])

    def _prepare(self, scratch: Path) -> None:
        self._runtime = pack.runtime_files(self.cuda)
        site = self.folder / "site"
        if self.settings.kit_python is not None and not site.exists():
            pack.fetch_ffi(self.settings.kit_python, site)
        self.reference_kernels = build_reference_kernels(self.builders[0], self.settings.target, scratch)
        packed = sorted(path for path in site.rglob("*") if path.is_file())
        self._fixed = {**self._runtime, **{f"site/{path.relative_to(site)}": path for path in packed}}
        for kernel in self.reference_kernels:
            self._fixed |= _files(kernel)
        self._fixed_bytes = sum(map(pack.compressed_size, self._fixed.values())) + _RESERVE

    def _take(self, built: list[Subject]) -> None:
        self._expected(built)
        for subject in built:
            size = sum(map(pack.compressed_size, _files(subject).values()))
            full = self._fixed_bytes + self._staged_bytes + size > _PART_BYTES
            if full or len(self.staged) >= PART_PROGRAMS:
                self._write_part()
            self.staged.append(subject)
            self._staged_bytes += size
            self.journal.record(subject.record_id, subject.task.task_id)

    def _finish(self) -> None:
        self._write_part()

    def _report(self) -> dict[str, Any]:
        sizes = [path.stat().st_size for path in (self.folder / "parts").glob("*.zip")]
        return {
            "programs": len(self.journal.recorded),
            "parts": len(sizes),
            "largest_part_mb": round(max(sizes, default=0) / 1e6, 2),
            "failures": dict(self.journal.causes),
            "next": f"copy {self.folder}/parts to the device, run `python part-000.zip` there, bring results-*.jsonl "
            f"back to {self.folder}/results, then: cdmpp data measure device={self.settings.device} kit=merge",
        }

    def _expected(self, subjects: list[Subject]) -> None:
        """Store what the first programs of the kit must compute, one a task, from the unscheduled task run here."""
        chosen: dict[str, Subject] = {}
        for subject in subjects:
            shape, _ = subject.arguments[-1]
            small = math.prod(shape) <= _CHECK_ELEMENTS and subject.task.flops <= _CHECK_FLOPS
            if small and self._checked + len(chosen) < _CHECKS:
                chosen.setdefault(subject.task.task_id, subject)
        requests = [
            {"op": "expect", "workload": s.task.workload, "path": str(s.library.with_suffix(".npy"))}
            for s in chosen.values()
        ]
        for _, reply in run_many(self.builders, requests, protocol.BUILD_LIMIT_S):
            self._checked += "cause" not in reply

    def _write_part(self) -> None:
        if not self.staged:
            return
        name = f"part-{len(list((self.folder / 'parts').glob('part-*.zip'))):03d}"
        files = dict(self._fixed)
        for subject in self.staged:
            files |= _files(subject)
        texts: dict[str, Any] = {"programs.json": _listed(self.staged)}
        texts["kit.json"] = {
            **self.header,
            "part": name,
            "cores": self.settings.threads,
            "software": software.versions(),
            "libraries": list(self._runtime),
            "reference_kernels": _listed(self.reference_kernels),
        }
        pack.write_part(self.folder / "parts" / f"{name}.zip", files, texts)
        rows = [{"record_id": s.record_id, "task_id": s.task.task_id, "schedule": s.schedule} for s in self.staged]
        table = pa.Table.from_pylist([{**row, "part": name} for row in rows])
        write_table(self.folder / "programs" / f"{name}.parquet", table)
        self.staged, self._staged_bytes = [], 0


def read_header(folder: Path) -> dict[str, str]:
    """Read ``device``, ``kind`` and ``target`` of a kit; ``DataError`` where its file says something else."""
    path = folder / KIT_FILE
    header = read_json(path)
    names = ("device", "kind", "target")
    if not isinstance(header, dict) or not all(isinstance(header.get(name), str) and header[name] for name in names):
        raise DataError(f"{path} is not the head of a kit: expected {', '.join(names)}, found {shown(header)}")
    devices.get(header["device"])
    check_choice(f"{path}: kind", header["kind"], ("cpu", "gpu"))
    return header


def packed_programs(folder: Path) -> list[dict[str, str]]:
    """List ``record_id``, ``task_id``, ``schedule`` and ``part`` of every program of the kit ``folder``."""
    paths = sorted((folder / "programs").glob("part-*.parquet"))
    return [row for path in paths for row in read_table(path).to_pylist()]


def _files(item: Timed) -> dict[str, Path]:
    """Archive name -> file of one program: library, what it must compute, machine code named by its source's hash."""
    library, source = item.library, item.library.with_suffix(".cu")
    files = {f"programs/{path.name}": path for path in (library, library.with_suffix(".npy")) if path.exists()}
    if source.exists():
        files[f"programs/{hashlib.sha256(source.read_bytes()).hexdigest()}.cubin"] = library.with_suffix(".cubin")
    return files


def _listed(items: Sequence[Timed]) -> list[dict[str, Any]]:
    return [{"record_id": item.record_id, "arguments": item.arguments} for item in items]
