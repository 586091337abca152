"""Data within reach is found; where there is none the message says what to do."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdmpp.data import download, sources
from cdmpp.data.records import append_records, read_records, write_info, write_tasks
from cdmpp.data.sources import (
    data_folders,
    devices_with_data,
    load_devices,
    source_devices,
)
from cdmpp.data.summary import name_parts, search_paths, summarise
from cdmpp.errors import DataError, NoRecordsError, UnknownDeviceError
from tests.toy_data import write_toy_dataset


@pytest.fixture
def own_set(tmp_path, make_record, task):
    folder = tmp_path / "datasets" / "mine"
    write_tasks(folder, [task])
    append_records(folder, [make_record(1), make_record(2, device="v100")])
    write_info(folder, name="mine")
    return folder


@pytest.fixture
def no_web(monkeypatch):
    def refuse(database, progress=True):
        raise DataError("cannot download https://example: Name or service not known")

    monkeypatch.setattr(sources, "download", refuse)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet34_a100", ("resnet34", "a100")),
        ("googlenet_a100_reconstructed", ("googlenet", "a100")),
        ("mobilenet_v2_a100-80gb", ("mobilenet_v2", "a100-80gb")),
        ("meta_cuda_a100_mobilenet_v2_10k", ("mobilenet_v2", "a100")),
        ("raw_legacy_resnet34", ("", "")),
        ("a100_v100", ("", "")),
        ("a100", ("", "a100")),
    ],
)
def test_name_parts(name, expected):
    assert name_parts(name) == expected


def test_finds_own_sets_and_raw_databases(tmp_path, monkeypatch, own_set, native_database, legacy_database):
    extra = tmp_path / "elsewhere"
    shutil.copytree(native_database, extra / "deep" / "resnet34_a100")
    shutil.copytree(legacy_database, extra / "deep" / "raw_legacy_resnet34")
    shutil.copytree(native_database, extra / "vgg_v100")
    monkeypatch.setenv("CDMPP_DATA", os.pathsep.join([str(extra), str(tmp_path / "missing")]))
    assert search_paths(["datasets"])[1:] == [extra, tmp_path / "missing"]
    folders = {name: [e.folder for e in found] for name, found in devices_with_data([tmp_path / "datasets"]).items()}
    assert folders == {"a100": [own_set, extra / "deep" / "resnet34_a100"], "v100": [own_set]}
    unclear = {entry.folder.name: entry.note for entry in summarise(search_paths()) if entry.note}
    assert set(unclear) == {"raw_legacy_resnet34", "vgg_v100"} and "sm_80" in unclear["vgg_v100"]
    with pytest.raises(UnknownDeviceError, match="a100"):
        data_folders("a1000")


def test_message_where_nothing_is_found(tmp_path, monkeypatch, own_set, native_database, no_web):
    shutil.copytree(native_database, tmp_path / "extra" / "unnamed")
    monkeypatch.setenv("CDMPP_DATA", str(tmp_path / "extra"))
    with pytest.raises(DataError) as error:
        data_folders("h100", [tmp_path / "datasets", tmp_path / "missing"])
    text = str(error.value)
    for part in (
        "device h100",
        str(tmp_path / "datasets"),
        f"{tmp_path / 'missing'} (no such folder)",
        str(tmp_path / "extra"),
        "cdmpp data import source=metaschedule",
        "device=h100",
        "cdmpp data measure",
        f"a100: {own_set} (1 records)",
        "v100:",
        f"{tmp_path / 'extra' / 'unnamed'} (database; to be imported by hand: the folder name",
        "no public source is pinned",
    ):
        assert part in text


def test_message_where_the_download_fails(tmp_path, no_web):
    with pytest.raises(DataError, match="(?s)lac-dcc/bennu at ad7179973cc9: cannot download.*CDMPP_DATA"):
        data_folders("a100", [tmp_path])


def test_damaged_folders_do_not_stop_the_search(tmp_path, own_set, caplog):
    (tmp_path / "datasets" / "broken").mkdir()
    (tmp_path / "datasets" / "broken" / "dataset.json").write_text("{")
    assert [entry.folder for entry in devices_with_data([tmp_path / "datasets"])["a100"]] == [own_set]
    assert "broken" in caplog.text


def test_raw_databases_are_imported_once(tmp_path, monkeypatch, native_database):
    pytest.importorskip("tvm")
    raw = tmp_path / "raw" / "resnet34_a100"
    shutil.copytree(native_database, raw)
    (folder,) = data_folders("a100", [tmp_path / "raw"], progress=False)
    assert len(read_records(folder)) == 34 and (tmp_path / "cache") in folder.parents
    written = (folder / "dataset.json").stat().st_mtime_ns
    assert data_folders("a100", [tmp_path / "raw"], progress=False) == [folder]
    assert (folder / "dataset.json").stat().st_mtime_ns == written
    path = raw / "database_tuning_record.json.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    broken = json.dumps([0, []])
    path.write_bytes(gzip.compress("\n".join([*lines, broken]).encode()))
    (again,) = data_folders("a100", [tmp_path / "raw"], progress=False)
    assert again != folder and len(read_records(again)) == 34


def test_two_runs_that_miss_the_same_import_make_it_once(tmp_path, monkeypatch, native_database):
    """A thread stands for a process: each is a writer of its own."""
    pytest.importorskip("tvm")
    from cdmpp.data.importers import databases as importers

    shutil.copytree(native_database, tmp_path / "raw" / "resnet34_a100")
    both, done, real = threading.Barrier(2), [], importers.import_database

    def imported(*arguments, **options):
        done.append(real(*arguments, **options))
        return done[-1]

    def folders():
        both.wait()
        return data_folders("a100", [tmp_path / "raw"], progress=False)

    monkeypatch.setattr(importers, "import_database", imported)
    with ThreadPoolExecutor(2) as pool:
        first, second = [future.result() for future in [pool.submit(folders) for _ in range(2)]]
    assert first == second and len(done) == 1 and len(read_records(first[0])) == 34


def test_download_stands_in_for_missing_data(tmp_path, monkeypatch, legacy_database):
    pytest.importorskip("tvm")
    fetched = tmp_path / "cache" / "downloads" / "x" / "resnet34_a100"
    shutil.copytree(legacy_database, fetched)
    asked = []
    monkeypatch.setattr(sources, "download", lambda database, progress=True: asked.append(database) or fetched)
    (folder,) = data_folders("a100", [tmp_path / "datasets"], progress=False)
    assert asked == list(download.PINNED) and len(read_records(folder)) == 34


def test_several_devices_become_one_data_set_with_shared_tasks(tmp_path):
    write_toy_dataset(tmp_path / "one", 40)
    write_toy_dataset(tmp_path / "two", 40, "xeon-icelake-avx2", factor=2.0, prefix="two-")
    both = load_devices(["xeon-icelake", "xeon-icelake-avx2"], [tmp_path], progress=False)
    assert len(both) == 80 and len(both.asts) == 80 and len(both.tasks) == 4 == len(set(both.task_ids))
    order = [list(both.record_ids).index(f"{prefix}record00007") for prefix in ("", "two-")]
    assert both.latency_s[order[1]] == 2 * both.latency_s[order[0]]
    assert list(both.devices[order]) == ["xeon-icelake", "xeon-icelake-avx2"]
    assert (both.asts[order[0]].leaf_features == both.asts[order[1]].leaf_features).all()
    with pytest.raises(NoRecordsError, match="graviton2"):
        load_devices(["xeon-icelake", "graviton2"], [tmp_path], progress=False)


def test_sources_are_of_the_targets_kind_where_there_are_any(tmp_path):
    write_toy_dataset(tmp_path / "one", 20)
    write_toy_dataset(tmp_path / "gpu", 20, "a100", prefix="g-")
    assert source_devices("xeon-icelake-avx2", [tmp_path]) == ["xeon-icelake"]
    assert source_devices("v100", [tmp_path]) == ["a100"]
    assert source_devices("a100", [tmp_path]) == ["xeon-icelake"], "the only one of its kind"
    assert source_devices("a100", [tmp_path / "gpu"]) == []
