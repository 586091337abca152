"""Measurement kits: built here, run as a device would, where no TVM can be imported, and merged into records."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from cdmpp.data.records import read_records, write_tasks
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure import reference_kernels
from cdmpp.measure.kit import builder
from cdmpp.measure.kit.builder import KitBuilder, packed_programs
from cdmpp.measure.kit.merge import merge_kit
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject, Subjects
from cdmpp.platform.files import read_lines
from cdmpp.platform.lock import writing
from tests.measure.tiny_task import TASK, cuda_schedules, schedules


class TinyKit(KitBuilder):
    """Packs the hand-made schedules of one task."""

    def _subjects(self, scratch: Path) -> Subjects:
        write_tasks(self.folder, [TASK])
        texts = {f"{number:016x}": text for number, text in enumerate(cuda_schedules() if self.cuda else schedules())}
        return Subjects(Subject.of(k, TASK, text, scratch) for k, text in texts.items() if k not in self.journal)


def settings(device: str, **changes: Any) -> MeasureSettings:
    return MeasureSettings(device, builders=1, progress=False, kit="build", **changes)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit of two parts of six programs; the big reference kernel is left out, it only costs time here."""
    folder = tmp_path_factory.mktemp("kit")
    small = {"compute": reference_kernels.WORKLOADS["compute"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_kernels, "WORKLOADS", small)
        patch.setattr(builder, "PART_PROGRAMS", 6)
        report = TinyKit(settings("xeon-icelake-avx2"), folder).run()
        again = TinyKit(settings("xeon-icelake-avx2"), folder).run()
    assert (report["programs"], report["parts"], report["failures"]) == (12, 2, {}) == (
        again["programs"], again["parts"], again["failures"],
    )  # fmt: skip
    return folder


def device_command(part: Path, out: Path, blocked: Path) -> tuple[list[str], dict[str, str]]:
    """How a device runs a part: TVM must not be needed, and any import of it would fail."""
    (blocked / "tvm").mkdir(parents=True, exist_ok=True)
    (blocked / "tvm" / "__init__.py").write_text("raise ImportError('there is no TVM on the device')")
    environment = {**os.environ, "PYTHONPATH": str(blocked)}
    words = ["--out", str(out), "--window", "2", "--separation-s", "0"]
    return [sys.executable, str(part), *words], environment


def run_part(part: Path, out: Path, blocked: Path) -> subprocess.CompletedProcess[str]:
    command, environment = device_command(part, out, blocked)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


def measured(out: Path) -> list[str]:
    return [entry["record_id"] for entry in read_lines(out) if "visits" in entry]


def test_a_kit_is_measured_through_a_kill_and_becomes_records(kit: Path, tmp_path: Path) -> None:
    results = tmp_path / "results-part-000.jsonl"
    part = kit / "parts" / "part-000.zip"
    assert part.stat().st_size < 16e6
    command, environment = device_command(part, results, tmp_path / "blocked")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 500
    while not (results.exists() and measured(results)):
        assert time.monotonic() < deadline and process.poll() is None, "no result before the end"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(measured(results)) < 6, "the kill came too late to show anything"
    with results.open("a") as file:
        file.write('{"record_id": "0000')  # what a kill in the middle of a line leaves
    done = run_part(part, results, tmp_path / "blocked")
    assert done.returncode == 0, done.stderr
    other = tmp_path / "results-part-001.jsonl"
    assert run_part(kit / "parts" / "part-001.zip", other, tmp_path / "blocked").returncode == 0
    found = measured(results) + measured(other)
    assert sorted(found) == sorted(row["record_id"] for row in packed_programs(kit)) and len(set(found)) == 12
    checks = [entry for entry in read_lines(results) if entry.get("event") == "check"]
    assert checks[0]["programs"] == checks[0]["right"] == 1 and checks[0]["largest_error"] < 1e-5

    out = tmp_path / "set"
    report = merge_kit(kit, [results, other], out)
    records = read_records(out, "xeon-icelake-avx2")
    assert report["new"] == len(records) == len({r.record_id for r in records}) == 12
    assert all(r.protocol == "cpu-v4" and 0 < r.latency_s < 1 and len(r.latency_samples_s) >= 20 for r in records)
    assert {r.schedule for r in records} == set(schedules())
    assert merge_kit(kit, [results, other], out)["new"] == 0
    assert len(read_records(out)) == 12

    lines = results.read_text().splitlines()
    broken = tmp_path / "results-broken.jsonl"
    broken.write_text("\n".join([lines[0], "{oops", *lines[2:]]))
    with pytest.raises(DataError, match="line 2 is not JSON"):
        merge_kit(kit, [broken], tmp_path / "other")
    broken.write_text(lines[0] + '\n{"record_id": "ffff", "visits": []}')
    with pytest.raises(DataError, match="ffff is not in the kit"):
        merge_kit(kit, [broken], tmp_path / "other")
    assert not list((tmp_path / "other").glob("**/*.parquet"))


def test_a_crash_or_a_wrong_result_costs_one_program(kit: Path, tmp_path: Path) -> None:
    part = tmp_path / "part-000.zip"
    with zipfile.ZipFile(kit / "parts" / "part-000.zip") as old, zipfile.ZipFile(part, "w") as new:
        programs = json.loads(old.read("programs.json"))[:3]
        wrong, crashing, good = (program["record_id"] for program in programs)
        assert f"programs/{wrong}.npy" in old.namelist()
        for name in old.namelist():
            content = old.read(name)
            if name == "programs.json":
                content = json.dumps(programs).encode()
            elif name == f"programs/{wrong}.npy":
                (tmp_path / "zeros.npy").unlink(missing_ok=True)
                np.save(tmp_path / "zeros.npy", np.zeros((64, 64), np.float32))
                content = (tmp_path / "zeros.npy").read_bytes()
            elif name == f"programs/{crashing}.so":
                content = content[:5000]  # the loader dies of a truncated library
            new.writestr(name, content)
    results = tmp_path / "results.jsonl"
    done = run_part(part, results, tmp_path / "blocked")
    assert done.returncode == 0 and "0 of 1 checked" in done.stdout, done.stderr
    causes = {entry["record_id"]: entry["cause"] for entry in read_lines(results) if "cause" in entry}
    assert measured(results) == [good] and set(causes) == {wrong, crashing}
    assert causes[wrong] == "wrong result" and causes[crashing] in ("crash", "time error")
    out = tmp_path / "set"
    report = merge_kit(kit, [results], out)
    assert report["new"] == 1 and sum(report["failures"].values()) == 2


def test_a_part_that_is_being_measured_is_refused(kit: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with results.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run_part(kit / "parts" / "part-000.zip", results, tmp_path / "blocked")
    assert done.returncode != 0 and "another run of this part" in done.stderr and "Traceback" not in done.stderr
    assert results.read_text() == ""
    with writing(tmp_path / "set", "another"), pytest.raises(CdmppError, match="being written by process"):
        in_thread(TinyKit(settings("xeon-icelake-avx2"), tmp_path / "set").run)


def in_thread(action: Callable[[], Any]) -> Any:
    """Another thread is another writer, as another process would be."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


def test_a_folder_keeps_to_its_device(kit: Path) -> None:
    with pytest.raises(CdmppError, match="another device or target"):
        KitBuilder(settings("xeon-icelake"), kit).run()
    with pytest.raises(DataError, match="no results"):
        merge_kit(kit, [], kit / "nowhere")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_cuda_programs_are_packed_with_their_machine_code(tmp_path: Path) -> None:
    sources: dict[str, str] = {}

    class Watched(TinyKit):
        def _write_part(self) -> None:
            sources.update({s.record_id: s.library.with_suffix(".cu").read_text() for s in self.staged})
            super()._write_part()

    report = Watched(settings("h200"), tmp_path).run()
    assert report["programs"] == 3 and report["largest_part_mb"] < 16
    with zipfile.ZipFile(tmp_path / "parts" / "part-000.zip") as part:
        kit = json.loads(part.read("kit.json"))
        assert sum(name.endswith(".cubin") for name in part.namelist()) == 3 + len(kit["reference_kernels"])
        assert [Path(name).name.split(".")[0] for name in kit["libraries"]] == [
            "libcudart", "libtvm_runtime", "libtvm_runtime_cuda",
        ]  # fmt: skip
        assert set(kit["libraries"]) <= set(part.namelist())
        for program in json.loads(part.read("programs.json")):
            # The library carries its source and asks for machine code by it: the file must be named by that very text.
            source = sources[program["record_id"]].encode()
            assert source in part.read(f"programs/{program['record_id']}.so")
            code = part.read(f"programs/{hashlib.sha256(source).hexdigest()}.cubin")
            assert code.startswith(b"\x7fELF") and f"p{program['record_id']}_kernel".encode() in code
