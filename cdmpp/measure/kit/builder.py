"""Builds a kit: samples and compiles here what another machine, without compiler or network, will measure.

A kit folder grows as a data set folder does: plan, tasks and failures, and instead of records ``programs/`` (what is in
which part) and ``parts/`` (what is carried to the device). A rerun goes on where the last one stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from cdmpp.data.files import read_json, read_table, write_json, write_table
from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.collector import Collector, Subject
from cdmpp.measure.isolation import run_many
from cdmpp.measure.kit import compile, pack
from cdmpp.measure.plan import Plan
from cdmpp.measure.sentinel import GPU_WORKLOADS, UNSCHEDULED, WORKLOADS
from cdmpp.measure.settings import CollectSettings, KitSettings

KIT_FILE = "kit.json"
_RESERVE = 100_000
"""Bytes kept free for the directory and the tables of a part."""
_CHECK_ELEMENTS = 1 << 16
_CHECK_FLOPS = 2e8
"""Tasks with more output or work are not checked: their results would fill the part, or take minutes here."""


class KitBuilder(Collector):
    """Packs programs of one device into ``folder``; ``settings.kit`` must be given.

    Raises:
        CdmppError: the folder holds a kit of another device or target, or a tool is missing (nvcc, pip wheel).
    """

    def __init__(self, settings: CollectSettings, folder: Path) -> None:
        super().__init__(settings, folder)
        if settings.kit is None:
            raise CdmppError("building a kit needs kit settings")
        self.kit: KitSettings = settings.kit
        self.kind = str(settings.target["kind"])
        self.header = {
            "device": settings.device,
            "kind": "cpu" if self.kind == "llvm" else "gpu",
            "target": self.target,
        }
        self.staged: list[Subject] = []
        self._staged_bytes = 0
        self._checked = 0
        self._cubins: dict[str, Path] = {}  # name of a library -> file that holds its kernels

    def run(self) -> dict[str, Any]:
        """Build until the plan or the budget is used up; returns counts and sizes of the parts."""
        self._runtime = pack.runtime_files(self.kind)
        super().run()
        parts = sorted((self.folder / "parts").glob("*.zip"))
        sizes = [path.stat().st_size for path in parts]
        return {
            "programs": len(self.recorded),
            "parts": len(parts),
            "largest_part_mb": round(max(sizes, default=0) / 1e6, 2),
            "failures": dict(self.causes),
            "next": f"copy {self.folder}/parts to the device, run `python part-000.zip` there, bring results-*.jsonl "
            f"back to {self.folder}/results, then: scripts/measure.py device={self.settings.device} kit=merge",
        }

    def _recall(self) -> None:
        path = self.folder / KIT_FILE
        if path.exists() and {key: read_json(path).get(key) for key in self.header} != self.header:
            raise CdmppError(f"{self.folder} holds a kit of another device or target: choose another kit_folder")
        super()._recall()
        write_json(path, self.header)
        for entry in packed_programs(self.folder):
            self.recorded.add(entry["record_id"])
            self._per_task[entry["task_id"]] += 1
        self._site = self.folder / "site"
        if self.kit.python is not None and not self._site.exists():
            pack.fetch_ffi(self.kit.python, self._site)

    # -- instead of measuring -----------------------------------------------------------------------------------

    def _sentinels(self, scratch: Path) -> None:
        self.scratch = scratch
        self._sentinel_entries = []
        for name, (workload, arguments) in (WORKLOADS if self.kind == "llvm" else GPU_WORKLOADS).items():
            subject = {"workload": workload, "schedule": UNSCHEDULED, "symbol": f"sentinel_{name}"}
            path = scratch / f"sentinel-{name}.so"
            request = {"op": "build_kit", **subject, "target": dict(self.settings.target), "path": str(path)}
            reply = self.builders[0].request(request, 2 * protocol.BUILD_LIMIT_S)
            if "cause" in reply:
                raise CdmppError(f"the sentinel {name} does not build: {reply}")
            self._sentinel_entries.append(
                {"name": name, "library": f"programs/{path.name}", "symbol": subject["symbol"], "arguments": arguments}
            )
        self._fixed = {f"programs/sentinel-{name}.so": scratch / f"sentinel-{name}.so" for name in WORKLOADS}
        self._fixed |= self._runtime | (pack.folder_files(self._site, "site") if self._site.exists() else {})
        self._fixed_bytes = sum(pack.compressed_size(path) for path in self._fixed.values()) + _RESERVE

    def _build_request(self, subject: Subject) -> dict[str, Any]:
        return {**super()._build_request(subject), "op": "build_kit", "symbol": _symbol(subject)}

    def _window(self, fresh: list[Subject]) -> None:
        fresh = self._machine_code(fresh)
        self._expected(fresh)
        for subject in fresh:
            size = sum(pack.compressed_size(path) for path in self._files(subject).values())
            full = self._fixed_bytes + self._staged_bytes + size > self.kit.part_mb * 1_000_000
            if self.staged and (full or len(self.staged) >= self.kit.part_programs):
                self._write_part()
            self.staged.append(subject)
            self._staged_bytes += size
            self.recorded.add(subject.record_id)
        self.progress.update(len(self.recorded), self._expected_total())

    def _finish(self) -> None:
        if self.staged:
            self._write_part()

    def _write_info(self, plan: Plan) -> None:
        pass  # there are no records

    # -- parts --------------------------------------------------------------------------------------------------

    def _machine_code(self, subjects: list[Subject]) -> list[Subject]:
        """Cubins beside the libraries of ``subjects``, on all cores; those that nvcc refuses are left out."""
        if self.kind != "cuda":
            return subjects
        paths = [path for path in self.scratch.glob("sentinel-*.cu") if path.stem not in self._cubins]
        paths += [subject.library.with_suffix(".cu") for subject in subjects]
        cubins, refused = compile.build_cubins(str(self.settings.target["arch"]), paths, len(self.builders))
        self._cubins.update(cubins)
        for name, complaint in refused.items():
            if name.startswith("sentinel"):
                raise CdmppError(f"nvcc refuses the sentinel {name}: {complaint}")
        kept = []
        for subject in subjects:
            if subject.library.stem in refused:
                self._cannot_be_timed(subject, {"cause": "nvcc", "message": refused[subject.library.stem]})
            else:
                kept.append(subject)
        return kept

    def _expected(self, subjects: list[Subject]) -> None:
        """What the first programs of the kit must compute, one a task, from the unscheduled task run here."""
        chosen: dict[str, Subject] = {}
        for subject in subjects:
            shape, _ = subject.arguments[-1]
            elements = 1
            for extent in shape:
                elements *= extent
            small = elements <= _CHECK_ELEMENTS and subject.task.flops <= _CHECK_FLOPS
            if small and self._checked + len(chosen) < self.kit.check:
                chosen.setdefault(subject.task.task_id, subject)
        messages = [
            {
                "op": "expect",
                "workload": subject.task.workload,
                "arguments": subject.arguments,
                "path": str(subject.library.with_suffix(".npy")),
            }
            for subject in chosen.values()
        ]
        for _, reply in run_many(self.builders, messages, protocol.BUILD_LIMIT_S):
            self._checked += "cause" not in reply

    def _files(self, subject: Subject) -> dict[str, Path]:
        """Archive name -> file of one program; a cubin that several share is named by each."""
        library = subject.library
        files = {f"programs/{library.name}": library}
        if library.with_suffix(".npy").exists():
            files[f"expected/{library.stem}.npy"] = library.with_suffix(".npy")
        if self.kind == "cuda":
            cubin = self._cubins[library.stem]
            files[f"cubins/{cubin.name}"] = cubin
        return files

    def _write_part(self) -> None:
        number = len(list((self.folder / "parts").glob("part-*.zip")))
        name = f"part-{number:03d}"
        files = dict(self._fixed)
        programs: list[dict[str, Any]] = []
        cubins: dict[str, str] = {}
        for subject in self.staged:
            own = self._files(subject)
            files |= own
            expected = f"expected/{subject.library.stem}.npy"
            programs.append(
                {
                    "record_id": subject.record_id,
                    "library": f"programs/{subject.library.name}",
                    "symbol": _symbol(subject),
                    "arguments": subject.arguments,
                    "expected": expected if expected in own else None,
                }
            )
        texts: dict[str, Any] = {"programs.json": programs}
        if self.kind == "cuda":
            for path in [*(s.library for s in self.staged), *self.scratch.glob("sentinel-*.so")]:
                cubin = self._cubins[path.stem]
                files[f"cubins/{cubin.name}"] = cubin
                cubins[compile.source_key(path.with_suffix(".cu").read_text())] = f"cubins/{cubin.name}"
            texts["cubins.json"] = cubins
        texts["kit.json"] = {
            **self.header,
            "part": name,
            "cores": self.settings.threads,
            "software": self._software,
            "libraries": list(self._runtime),
            "sentinels": self._sentinel_entries,
        }
        pack.write_part(self.folder / "parts" / f"{name}.zip", files, texts)
        rows = [
            {"record_id": s.record_id, "task_id": s.task.task_id, "schedule": s.schedule, "part": name}
            for s in self.staged
        ]
        write_table(self.folder / "programs" / f"{name}.parquet", pa.Table.from_pylist(rows))
        self.staged, self._staged_bytes = [], 0


def packed_programs(folder: Path) -> list[dict[str, str]]:
    """``record_id``, ``task_id``, ``schedule`` and ``part`` of every program of the kit ``folder``."""
    paths = sorted((folder / "programs").glob("part-*.parquet"))
    return [row for path in paths for row in read_table(path).to_pylist()]


def _symbol(subject: Subject) -> str:
    return f"p{subject.record_id}"
