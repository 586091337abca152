"""Worker processes: a program that crashes, hangs or lacks a tool costs itself, and sticks only where it must."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp.data import derive as module
from cdmpp.data.derive import Source, data_set_folder, derive, failures, record_keys, sources_of
from cdmpp.data.derive_worker import packed, unpacked
from cdmpp.data.derived_table import read_codes, read_rows
from cdmpp.errors import CdmppError, DataError, MissingToolError
from cdmpp.platform import workers
from cdmpp.platform.paths import cache_root


@pytest.fixture(autouse=True)
def fake_child(monkeypatch) -> None:
    monkeypatch.setattr(module, "COMMAND", (str(Path(__file__).parent / "fake_child.py"),))
    monkeypatch.setattr(workers, "_spare", [])
    monkeypatch.setattr(module, "has_tvm", lambda: True)
    yield
    for worker in workers._spare:
        worker.stop()


def sources(*schedules: str) -> list[Source]:
    return [Source(f"k{i}", "text", schedule, "{}") for i, schedule in enumerate(schedules)]


def chunk_paths(folder: Path) -> list[Path]:
    return list(folder.glob("chunk-*.parquet"))


def stored(folder: Path, kind: str = "per_store") -> list[str]:
    read = read_codes if kind == "codes" else read_rows
    return sorted(key for path in chunk_paths(folder) for key in read(path))


def test_crashes_hangs_and_missing_tools_cost_their_own_program_only(tmp_path):
    wanted = {"per_store": (tmp_path, sources("", "crash", "", "hang", "bad", "no tool", ""))}
    reasons = derive(wanted, workers=1, progress=False, limit_s=1)
    lasting = {"k1": "TVM crashed while featurising this program", "k4": "no"}
    assert stored(tmp_path) == ["k0", "k2", "k6"] and failures(tmp_path) == lasting  # the others are tried again
    assert reasons == {"per_store": {**lasting, "k3": "featurising took more than 1 s", "k5": "no tool"}}


def test_two_kinds_share_the_workers(tmp_path):
    kinds = ("per_store", "codes")
    derive({kind: (tmp_path / kind, sources(*[""] * 20)) for kind in kinds}, workers=2, progress=False)
    assert [len(stored(tmp_path / kind, kind)) for kind in kinds] == [20, 20]


@pytest.mark.parametrize(("kind", "library"), [("asts", "extract"), ("codes", "cpu_code"), ("gpu_codes", "gpu_code")])
def test_a_library_of_other_sources_ends_it_and_costs_no_program(kind, library, tmp_path, monkeypatch):
    """It used to count as a tool that some program lacks: networks were answered without machine code."""
    monkeypatch.setattr("cdmpp.platform.extension.digest_of", lambda _: "of other sources")
    with pytest.raises(MissingToolError, match=rf"lib/{library}\.so is older than .*: run `make native`"):
        derive({kind: (tmp_path, sources(""))}, progress=False)
    assert not chunk_paths(tmp_path) and not failures(tmp_path)
    derive({"per_store": (tmp_path, sources(""))}, progress=False)  # TVM's own extractor reads these
    assert stored(tmp_path) == ["k0"]


def test_chunks_are_written_while_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WRITE_AFTER", 2)
    derive({"per_store": (tmp_path, sources(*[""] * 5))}, workers=1, progress=False)
    assert len(chunk_paths(tmp_path)) == 3 and len(stored(tmp_path)) == 5


def test_what_is_done_is_kept_where_the_user_stops(tmp_path, monkeypatch):
    left = [1, 2, 3]

    def stop(text):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return unpacked(text)

    monkeypatch.setattr(module, "unpacked", stop)
    with pytest.raises(KeyboardInterrupt):
        derive({"per_store": (tmp_path, sources(*[""] * 9))}, workers=1, progress=False)
    assert len(stored(tmp_path)) == 3


def test_a_full_disk_ends_the_run(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(DataError, match="No space left"):
        derive({"per_store": (tmp_path, sources(""))}, progress=False)


def test_a_cache_that_cannot_be_written_is_told_with_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    (tmp_path / "per_store").write_text("no folder")
    with pytest.raises(DataError, match="cannot write.*CDMPP_CACHE name another"):
        derive({"per_store": (tmp_path / "per_store" / "v1", sources(""))}, progress=False)


def test_a_child_that_cannot_start_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMAND", ("-c", "raise SystemExit('broken wheel')"))
    with pytest.raises(CdmppError, match="did not start: broken wheel"):
        derive({"per_store": (tmp_path, sources(""))}, progress=False)


def test_arrays_travel_exactly():
    arrays = {"a": np.array([[0.1, np.nan]], np.float32), "b": np.zeros((0, 3), np.int64)}
    for name, array in unpacked(packed(arrays)).items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype


def test_a_mended_workload_is_another_program(task, make_record):
    mended = dataclasses.replace(task, workload="mended")
    (before,), (after,) = (sources_of([make_record(1)], {"t0": t}) for t in (task, mended))
    assert before.key != after.key and before.key.startswith(f"{1:016x}-")
    assert [before.key] == record_keys([f"{1:016x}"], ["t0"], {"t0": task})


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a/b"])
def test_cache_folders_stay_in_the_cache(tmp_path, name):
    folder = data_set_folder("asts", "5", tmp_path / name)
    assert folder.resolve().parent == (cache_root() / "asts" / "v5").resolve()
    assert folder != data_set_folder("asts", "5", tmp_path / name / "other")


def test_a_damaged_list_of_failures_is_told_and_passed_over(tmp_path, caplog):
    (tmp_path / "chunk-a.failed.json").write_text("{")
    (tmp_path / "chunk-b.failed.json").write_text(json.dumps({"k": "no"}))
    assert failures(tmp_path) == {"k": "no"} and "chunk-a" in caplog.text
