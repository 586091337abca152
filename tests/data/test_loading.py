"""Loading: programs in record order whatever the order of files, mapped, derived where missing, nothing left behind."""

from __future__ import annotations

import dataclasses
import gc
import shutil

import numpy as np
import pytest
from toy_data import toy_ast, toy_dataset, write_toy_dataset

from cdmpp import devices
from cdmpp.ast.mapped_table import MappedTable, MappedTableWriter, concat
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data import loading
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.dataset import join_datasets
from cdmpp.data.derived_table import write_codes
from cdmpp.data.loading import load_dataset, load_programs
from cdmpp.data.merge import merge_records
from cdmpp.data.records import append_records, read_records, write_info, write_tasks
from cdmpp.data.shared_asts import shared_asts, write_shared
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.evaluation import baselines
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig, TrainerConfig


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """A hundred toy programs, half of them with code vectors, their ASTs in two files out of record order."""
    write_toy_dataset(tmp_path / "set", 100)
    whole = load_dataset(tmp_path / "set")
    ids = whole.record_ids.tolist()
    for part, rows in enumerate((np.arange(60, 100), np.arange(60)[::-1])):
        path = tmp_path / "set" / "asts" / f"part-{part:05d}.parquet"
        write_asts(path, [ids[row] for row in rows], whole.asts.take(rows))
    codes = np.random.default_rng(0).uniform(0, 9, (50, CODE_WIDTH)).astype(np.float32)
    write_codes(tmp_path / "set" / "codes" / "part-00000.parquet", dict(zip(ids[:50], codes, strict=True)))
    return tmp_path / "set"


def assert_same(a, b):
    for name in ("record_ids", "task_ids", "devices"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    np.testing.assert_array_equal(a.latency_s, b.latency_s)
    np.testing.assert_array_equal(a.spread, b.spread)
    assert a.tasks == b.tasks and (a.source, a.features) == (b.source, b.features)
    for field in dataclasses.fields(AstTable):
        np.testing.assert_array_equal(getattr(a.asts, field.name), getattr(b.asts, field.name), field.name)


def test_programs_come_in_record_order_from_mapped_files(folder):
    data = load_dataset(folder)
    assert isinstance(data.asts, MappedTable)
    assert data.record_ids.tolist() == [record.record_id for record in read_records(folder)]
    assert all(isinstance(one.base, np.memmap) for one in (data.record_ids, data.devices, data.latency_s))
    assert np.isnan(data.asts.codes[:, 0]).tolist() == [False] * 50 + [True] * 50
    for path in (folder / "asts").iterdir():
        path.rename(path.with_name({"part-00000.parquet": "part-00003.parquet"}.get(path.name, path.name)))
    assert_same(load_dataset(folder), data)


def shared_copy(folder, name="copy"):
    """The data set once more next to ``folder``, with the ASTs of all but the last ten programs named there."""
    copy = folder.parent / name
    shutil.copytree(folder, copy)
    ids = load_dataset(folder).record_ids.tolist()
    last = load_dataset(folder).asts.take(np.arange(90, 100))
    for path in (copy / "asts").iterdir():
        path.unlink()
    write_shared(copy, folder.name, {one: one for one in ids[:90]})
    write_asts(copy / "asts" / "part-00000.parquet", ids[90:], last)
    return copy


def test_asts_of_another_data_set_are_its_own(folder):
    whole, copy = load_dataset(folder), load_dataset(shared_copy(folder))
    np.testing.assert_array_equal(copy.asts.leaf_features, whole.asts.leaf_features)
    np.testing.assert_array_equal(copy.asts.kernel_offsets, whole.asts.kernel_offsets)
    assert copy.record_ids.tolist() == whole.record_ids.tolist()


def test_several_records_may_share_an_ast(folder):
    ids = load_dataset(folder).record_ids.tolist()
    copy = shared_copy(folder)
    write_shared(copy, folder.name, dict.fromkeys(ids[:3], ids[5]))
    found = {name: table[row] for names, table in shared_asts(copy) for row, name in enumerate(names)}
    assert set(found) == set(ids[:3])
    expected = load_dataset(folder).asts[5]
    assert all(np.array_equal(ast.leaf_features, expected.leaf_features) for ast in found.values())


def test_a_data_set_that_is_not_there_is_named_and_asts_are_derived(folder, monkeypatch, caplog):
    copy = shared_copy(folder)
    wanted = []
    monkeypatch.setattr(loading, "derive", lambda kinds, *_: wanted.append(kinds["asts"][1]) or {"asts": {}})
    folder.rename(folder.with_name("gone"))
    with pytest.raises(DataError, match="no compact AST for 90 of 100"):
        load_dataset(copy)
    assert len(wanted[0]) == 90 and "'set' for its ASTs, which is not in" in caplog.text


@pytest.mark.parametrize("source", ["../set", "/", "", ".."])
def test_asts_are_read_from_a_neighbour_only(folder, source):
    copy = shared_copy(folder)
    write_shared(copy, source, {"a": "b"})
    with pytest.raises(DataError, match="which is not in"):
        list(shared_asts(copy))


def test_samples_of_a_program_in_two_folders_are_united(folder, tmp_path):
    records = read_records(folder)
    slower = [
        dataclasses.replace(r, latency_s=3 * r.latency_s, latency_samples_s=(3 * r.latency_s,)) for r in records[:7]
    ]
    other = tmp_path / "other"
    write_info(other, name="other")
    first = load_dataset(folder)
    write_tasks(other, first.tasks.values())
    append_records(other, slower)
    write_asts(other / "asts" / "part-00000.parquet", first.record_ids[:7].tolist(), first.asts.take(np.arange(7)))
    both = load_programs([folder, other])
    merged = [merge_records(pair) for pair in zip(records[:7], slower, strict=True)]
    assert both.record_ids.tolist() == first.record_ids.tolist() and (both.spread[:7] > 0).all()
    np.testing.assert_allclose(both.latency_s[:7], [record.latency_s for record in merged])
    np.testing.assert_allclose(both.spread[:7], [record.spread for record in merged])
    np.testing.assert_array_equal(both.asts.leaf_features, first.asts.leaf_features)


def test_a_folder_with_doubled_rows_holds_each_program_once(folder):
    """What two imports at once left behind before folders were locked; seven of the copies were measured anew."""
    before = load_dataset(folder)
    copies = read_records(folder)
    for place in range(7):
        samples = (3 * copies[place].latency_s,)
        copies[place] = dataclasses.replace(copies[place], latency_s=samples[0], latency_samples_s=samples)
    append_records(folder, copies)
    data = load_dataset(folder)
    assert len(data) == 100
    np.testing.assert_array_equal(data.latency_s, before.latency_s)  # these labels are minima
    np.testing.assert_allclose(data.spread[:7], 0.5)
    np.testing.assert_array_equal(data.spread[7:], before.spread[7:])


def test_no_file_is_left_behind_even_by_a_kill(folder, cache):
    data = load_dataset(folder)
    gc.collect()
    assert not list((cache / "mapped").iterdir()) and data.take([3]).asts[0].n_leaf > 0


def test_a_cache_that_cannot_be_written_is_told(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write .*CDMPP_CACHE"):
        load_dataset(folder)


def test_what_is_missing_is_named(folder):
    with pytest.raises(DataError, match="no records of device a100; it has records of: xeon-icelake"):
        load_dataset(folder, "a100")
    (record,) = read_records(folder)[:1]
    append_records(folder, [dataclasses.replace(record, record_id="f" * 16, task_id="lost")])
    with pytest.raises(DataError, match="1 records name a task that tasks.parquet lacks, first f{16}"):
        load_dataset(folder)


def test_a_bad_row_is_named(folder):
    import pyarrow.parquet as pq

    path = next((folder / "records").glob("part-*"))
    rows = pq.read_table(path).to_pylist()
    rows[5]["latency_s"] = -1.0
    pq.write_table(pq.read_table(path).schema.empty_table().from_pylist(rows, pq.read_schema(path)), path)
    with pytest.raises(DataError, match=r"part-00000\.parquet row 5: latency_s is -1"):
        load_dataset(folder)


def test_many_programs_without_asts_are_an_error(folder, monkeypatch):
    (folder / "asts" / "part-00001.parquet").unlink()
    monkeypatch.setattr(loading, "derive", lambda *_: {"asts": {}})
    with pytest.raises(DataError, match="no compact AST for 60 of 100 records"):
        load_dataset(folder)


def test_missing_asts_are_derived_once(folder, monkeypatch):
    whole = load_dataset(folder)
    (folder / "asts" / "part-00001.parquet").unlink()
    asked = []

    def derived(jobs, *_):
        ((cache, sources),) = jobs.values()
        keys = [source.key for source in sources]
        asked.extend(key.partition("-")[0] for key in keys)
        rows = [whole.record_ids.tolist().index(key.partition("-")[0]) for key in keys]
        write_asts(cache / "chunk-0.parquet", keys, whole.asts.take(rows))
        return {"asts": {}}

    monkeypatch.setattr(loading, "derive", derived)
    assert_same(load_dataset(folder), whole)
    assert sorted(asked) == sorted(whole.record_ids[:60].tolist())
    load_dataset(folder)
    assert len(asked) == 60


def test_joined_with_another_device_it_stays_mapped(folder, tmp_path):
    write_toy_dataset(tmp_path / "b", 30, "xeon-icelake-avx2", prefix="b")
    a, b = load_dataset(folder), load_dataset(tmp_path / "b")
    both, expected = join_datasets([a, b]), AstTable.concat([a.asts, b.asts])
    assert isinstance(both.asts, MappedTable) and len(both) == 130
    for field in dataclasses.fields(AstTable):
        np.testing.assert_array_equal(getattr(both.asts, field.name), getattr(expected, field.name))
    assert concat([a.asts], tmp_path) is a.asts


def test_batches_are_those_of_memory(tmp_path):
    rng = np.random.default_rng(1)
    table = AstTable.from_asts([toy_ast(rng) for _ in range(40)])
    writer = MappedTableWriter(tmp_path)
    for rows in np.array_split(np.arange(40), 3):
        writer.append(table.take(rows))
    mapped, sheet, rows = writer.finish(), devices.get("xeon-icelake"), np.array([7, 3, 31, 12, 20])
    one, two = (
        ProgramTensors.build(asts, {sheet.name: sheet}, [sheet.name] * 5, rows=rows) for asts in (table, mapped)
    )
    assert not one.coded_kinds(np.arange(5)) and not two.coded_kinds(np.arange(5))
    for a, b in zip(one.batch(np.array([4, 0, 2])), two.batch(np.array([4, 0, 2])), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_training_from_files_gives_the_model_of_memory(folder, tmp_path):
    data = load_dataset(folder)
    in_memory = dataclasses.replace(data, asts=data.asts.take(np.arange(len(data))))
    assert not isinstance(in_memory.asts, MappedTable)
    config = TrainConfig(trainer=TrainerConfig(epochs=2, batch_size=16))
    answers = []
    for name, programs in (("a", data), ("b", in_memory)):
        split = make_split(programs, "by_task", 0)
        result = train(programs, split, config, Run(tmp_path / name, 0, False, "cpu"))
        answers.append(predict_rows(result.predictor, programs, split.test))
    np.testing.assert_allclose(*answers, rtol=1e-5)


def test_baselines_of_a_large_set_see_a_sample(folder, monkeypatch):
    data = load_dataset(folder)
    split = make_split(data, "by_task", 0)
    monkeypatch.setattr(baselines, "_MAX_PROGRAMS", 15)
    seen = []

    def score(dataset, rows, _):
        seen.append((len(dataset), len(rows)))
        return {"metrics": 1}

    monkeypatch.setattr(baselines, "score", score)
    assert baselines.score_baselines(data, split, ["constant"]) == {"constant": 1}
    assert seen[0][0] <= 45 and seen[0][1] == 15


def test_mapped_programs_go_to_other_processes_though_their_files_are_gone(tmp_path):
    from joblib import Parallel, delayed

    writer = MappedTableWriter(tmp_path / "mapped")
    writer.append(toy_dataset(3000)[0].asts)
    table = writer.finish()
    assert not list((tmp_path / "mapped").iterdir())
    first, second = Parallel(n_jobs=2)(delayed(AstTable.take)(table, [i]) for i in (5, 2999))
    np.testing.assert_array_equal(first.leaf_features, table[5].leaf_features)
    np.testing.assert_array_equal(second.kernel_features, table[2999].kernel_features)
