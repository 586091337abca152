"""Data sets as arrays: ASTs derived once, in chunks that survive a kill, and named where they fail."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data import derive as derive_module
from cdmpp.data import loading as module
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.loading import ast_cache, load_dataset, load_programs
from cdmpp.data.merge import merge_records
from cdmpp.data.records import append_records, read_records, read_tasks, write_info, write_tasks
from cdmpp.errors import DataError

CHUNKS = "chunk-*.parquet"


def _ast(value: float, leaves: int = 2) -> CompactAST:
    positions = np.arange(leaves, dtype=np.int32)
    return CompactAST(
        np.full((leaves, LEAF_WIDTH), value, np.float32),
        positions,
        positions,
        np.zeros(leaves, np.int32),
        np.zeros((1, KERNEL_WIDTH), np.float32),
        "gpu",
    )


def _folder(path, task, records, name="set"):
    write_tasks(path, [task])
    append_records(path, records)
    write_info(path, name=name)
    table = AstTable.from_asts(_ast(int(r.record_id, 16), 1 + int(r.record_id, 16) % 3) for r in records)
    write_asts(path / "asts" / "part-00000.parquet", [r.record_id for r in records], table)
    return path


def test_loads_shipped_asts_without_tvm(tmp_path, task, make_record, monkeypatch):
    monkeypatch.setattr(derive_module.importlib.util, "find_spec", lambda name: None)
    records = [make_record(n, latency_s=1e-3 * (n + 1), spread=0.01) for n in (5, 3, 4)] + [
        make_record(9, device="v100")
    ]
    folder = _folder(tmp_path / "set", task, records)
    data = load_dataset(folder, "a100")
    assert isinstance(data, LatencyDataset) and len(data) == 3
    assert data.record_ids.tolist() == [f"{n:016x}" for n in (5, 3, 4)]
    np.testing.assert_allclose(data.latency_s, [6e-3, 4e-3, 5e-3])
    assert [data.asts[i].leaf_features[0, 0] for i in range(3)] == [5, 3, 4]
    assert data.op_classes.tolist() == ["conv2d"] * 3
    assert data.spread.tolist() == [0.01] * 3 and set(data.devices) == {"a100"}
    part = data.take([2, 0])
    assert part.record_ids.tolist() == [f"{n:016x}" for n in (4, 5)] and part.asts[1].n_leaf == 3
    assert len(data.take(data.latency_s > 4.5e-3)) == 2
    assert set(load_dataset(folder).devices) == {"a100", "v100"}


def test_missing_tvm_is_told(tmp_path, task, make_record, monkeypatch):
    folder = _folder(tmp_path / "set", task, [make_record(1)])
    shutil.rmtree(folder / "asts")
    monkeypatch.setattr(derive_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"TVM is not installed.*cdmpp\[tvm\]"):
        load_dataset(folder, progress=False)


def test_empty_and_foreign_sets(tmp_path, task, make_record):
    folder = _folder(tmp_path / "set", task, [make_record(1)])
    with pytest.raises(DataError, match="no records of device h100; it has records of: a100"):
        load_dataset(folder, "h100")
    write_tasks(tmp_path / "empty", [task])
    write_info(tmp_path / "empty", name="empty")
    with pytest.raises(DataError, match="none at all"):
        load_dataset(tmp_path / "empty")
    append_records(folder, [make_record(2, task_id="lost")])
    with pytest.raises(DataError, match="1 records name a task that tasks.parquet lacks"):
        load_dataset(folder)


def test_folders_join_and_copies_count_once(tmp_path, task, make_record):
    shared = make_record(1, latency_samples_s=(1.0, 1.2), latency_s=1.1)
    again = make_record(1, latency_samples_s=(1.6, 1.4), latency_s=1.5)
    other = dataclasses.replace(task, networks={"vgg": 1})
    one = _folder(tmp_path / "one", task, [shared, make_record(2)])
    two = _folder(tmp_path / "two", other, [make_record(3), again, make_record(2)], "two")
    data = load_programs([one, two], "a100")
    assert data.record_ids.tolist() == [f"{n:016x}" for n in (1, 2, 3)]
    np.testing.assert_allclose(data.latency_s, [1.3, 2e-3, 2e-3])
    assert [data.asts[i].leaf_features[0, 0] for i in range(3)] == [1, 2, 3]
    assert set(data.tasks[data.task_ids[0]].networks) == {"resnet34", "vgg"}
    assert str(one) in data.source and str(two) in data.source


def test_merge_follows_the_statistic(make_record):
    first = make_record(1, latency_samples_s=(3.0, 2.0), latency_s=2.0, statistic="min", latency_min_s=2.0)
    second = dataclasses.replace(first, latency_samples_s=(1.0, 5.0), latency_s=1.0, latency_min_s=1.0, flagged=True)
    merged = merge_records([first, second, first])
    assert merged.latency_s == 1.0 and merged.latency_median_s == 2.5 and merged.n_merged == 2 and merged.flagged
    assert merged.spread == pytest.approx(0.5 / 1.5)
    assert merge_records([first, first]) == first


@pytest.fixture(scope="module")
def imported(tmp_path_factory, native_database):
    pytest.importorskip("tvm")
    from cdmpp.data.importers.databases import import_database

    out = tmp_path_factory.mktemp("imported") / "set"
    import_database(native_database, out, "a100", "resnet34", progress=False)
    return out


@pytest.fixture
def small(imported, tmp_path):
    """One record of each of four tasks."""
    records = {record.task_id: record for record in read_records(imported)}
    write_tasks(tmp_path / "small", read_tasks(imported).values())
    append_records(tmp_path / "small", records.values())
    write_info(tmp_path / "small", name="small")
    return tmp_path / "small"


@pytest.mark.tvm
def test_derives_once_and_continues(small, monkeypatch, own_cache):
    pytest.importorskip("tvm")
    from cdmpp.ast.extract import extract_many
    from cdmpp.programs.replay import replay

    monkeypatch.setattr(derive_module, "_WRITE_AFTER", 2)
    data = load_dataset(small, "a100", progress=False)
    records, tasks = read_records(small), read_tasks(small)
    for index, record in enumerate(records):
        (expected,) = extract_many([replay(tasks[record.task_id].workload, record.schedule, record.target)])
        np.testing.assert_allclose(data.asts[index].leaf_features, expected.leaf_features, rtol=1e-5)
        assert data.record_ids[index] == record.record_id
    cache = ast_cache(small)
    assert len(sorted(cache.glob(CHUNKS))) == 2 and own_cache in cache.parents

    asked = []
    real = module.derive

    def counting(wanted, *args):
        asked.append(len(wanted["asts"][1]))
        return real(wanted, *args)

    monkeypatch.setattr(module, "derive", counting)
    load_dataset(small, progress=False)
    assert asked == []
    sorted(cache.glob(CHUNKS))[0].unlink()  # as after a kill
    again = load_dataset(small, workers=1, progress=False)
    assert asked == [2]
    np.testing.assert_array_equal(again.asts.leaf_features, data.asts.leaf_features)
    sorted(cache.glob(CHUNKS))[0].write_bytes(b"damaged")
    load_dataset(small, workers=1, progress=False)
    assert asked == [2, 2]

    write_asts(small / "asts" / "part-00000.parquet", data.record_ids.tolist(), data.asts)
    shutil.rmtree(own_cache)
    np.testing.assert_array_equal(load_dataset(small).asts.leaf_features, data.asts.leaf_features)
    assert asked == [2, 2]


@pytest.mark.tvm
def test_programs_that_do_not_replay_are_named(small, make_record, caplog, monkeypatch):
    pytest.importorskip("tvm")
    good = read_records(small)
    broken = json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []])
    append_records(
        small, [make_record(1, task_id=good[0].task_id, target=good[0].target, schedule=broken, extra={"line": "7"})]
    )
    with pytest.raises(
        DataError, match=r"no compact AST for 1 of 5 records, first record 0+1: line 7 of its database: the schedule"
    ):
        load_dataset(small, workers=1, progress=False)
    monkeypatch.setattr(module, "MAX_FAILED", 0.5)
    assert len(load_dataset(small, workers=1, progress=False)) == 4
    assert "left out" in caplog.text


@pytest.mark.tvm
def test_a_mended_workload_is_tried_again(small, monkeypatch):
    pytest.importorskip("tvm")
    tasks = read_tasks(small)
    first = next(iter(tasks))
    (small / "tasks.parquet").unlink()
    write_tasks(
        small, [dataclasses.replace(t, workload="broken(" if k == first else t.workload) for k, t in tasks.items()]
    )
    monkeypatch.setattr(module, "MAX_FAILED", 0.5)
    assert len(load_dataset(small, workers=1, progress=False)) == 3
    (small / "tasks.parquet").unlink()
    write_tasks(small, tasks.values())
    assert len(load_dataset(small, workers=1, progress=False)) == 4


@pytest.mark.tvm
def test_a_name_with_dots_writes_into_the_cache_alone(small, own_cache, tmp_path):
    pytest.importorskip("tvm")
    write_info(small, name="../../../outside")
    before = {path for path in tmp_path.rglob("*") if own_cache not in path.parents}
    assert len(load_dataset(small, progress=False)) == 4
    assert {path for path in tmp_path.rglob("*") if own_cache not in path.parents} - before <= {own_cache}
    assert list(ast_cache(small).glob(CHUNKS))


@pytest.mark.tvm
def test_per_store_rows(small):
    pytest.importorskip("tvm")
    from cdmpp.data.derived_table import PER_STORE_WIDTH
    from cdmpp.data.per_store import load_per_store

    data = _labels(read_records(small))
    counts = load_per_store(
        data, [small], lambda rows: np.array([rows.shape[0], rows.shape[1], rows.max()]), progress=False
    )
    assert counts.shape == (4, 3) and (counts[:, 1] == PER_STORE_WIDTH).all() and counts.dtype == np.float32
    assert (counts[:, 0] >= 1).all() and (counts[:, 2] > 1).all()
    again = load_per_store(data.take([2]), [small], lambda rows: rows.sum(0), progress=False)
    assert again.shape == (1, PER_STORE_WIDTH)


def _labels(records) -> LatencyDataset:
    n = len(records)
    return LatencyDataset(
        np.array([r.record_id for r in records]),
        np.array(["t0"] * n),
        np.array(["a100"] * n),
        np.ones(n),
        np.zeros(n),
        AstTable.from_asts(_ast(i) for i in range(n)),
        {"t0": None},  # type: ignore[dict-item]
        "hand",
    )


def test_misaligned_arrays_are_refused(make_record):
    data = _labels([make_record(1), make_record(2)])
    with pytest.raises(DataError, match="latency_s has 1 entries for 2 ASTs"):
        dataclasses.replace(data, latency_s=np.ones(1))
