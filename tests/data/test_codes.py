"""Code vectors on disk and on their way into batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from toy_data import write_toy_dataset

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.codes import VERSIONS, code_cache, codes_of
from cdmpp.data.derive import record_keys
from cdmpp.data.derived_table import read_codes, write_codes
from cdmpp.data.labels import Labels
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.programs.task import Task


def ast(code: np.ndarray | None) -> CompactAST:
    place = np.zeros(1, np.int32)
    return CompactAST(
        np.zeros((1, LEAF_WIDTH), np.float32), place, place, place, np.ones((1, KERNEL_WIDTH), np.float32), "cpu", code
    )


CODE = np.arange(CODE_WIDTH, dtype=np.float32)


def test_programs_with_and_without_a_code_vector_share_a_table(tmp_path: Path) -> None:
    table = AstTable.from_asts([ast(None), ast(CODE)])
    assert table[0].code is None
    np.testing.assert_array_equal(table[1].code, CODE)
    np.testing.assert_array_equal(table.take([1, 0])[0].code, CODE)
    joined = AstTable.concat([AstTable.from_asts([ast(None)]), table])
    assert [joined[i].code is None for i in range(3)] == [True, True, False]
    assert AstTable.from_asts([ast(None)]).codes is None
    write_asts(tmp_path / "a.parquet", ["x", "y"], table)
    np.testing.assert_array_equal(read_asts(tmp_path / "a.parquet")[1].codes, table.codes)


def test_a_batch_flags_the_programs_that_have_one() -> None:
    sheet = devices.get("xeon-icelake")
    table = AstTable.from_asts([ast(None), ast(CODE)])
    codes = ProgramTensors.build(table, {sheet.name: sheet}, [sheet.name] * 2).batch(np.arange(2)).codes.numpy()
    assert not codes[0].any()
    assert codes[1, 0] == 1
    np.testing.assert_array_equal(codes[1, 1:], CODE)


def codes_for(folder: Path, records: list[Record], tasks: dict[str, Task]) -> np.ndarray | None:
    return codes_of([(folder, tasks)], Labels.of_records(records))


@pytest.fixture
def records(make_record) -> dict[str, Record]:
    return {name: make_record(record_id=name) for name in "abc"}


def test_shipped_codes_are_found_by_record(tmp_path: Path, records, task) -> None:
    assert codes_for(tmp_path, [records["a"]], {"t0": task}) is None
    write_codes(tmp_path / "codes" / "part-00000.parquet", {"a": CODE, "b": CODE + 1})
    found = codes_for(tmp_path, [records[name] for name in "bca"], {"t0": task})
    assert found is not None
    np.testing.assert_array_equal(found[[0, 2]], [CODE + 1, CODE])
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("kind", VERSIONS)
def test_cached_codes_are_those_of_the_workload(tmp_path: Path, records, task, kind) -> None:
    (key,) = record_keys(["a"], ["t0"], {"t0": task})
    write_codes(code_cache(tmp_path, kind) / "chunk-0.parquet", {key: CODE})
    found = codes_for(tmp_path, [records["a"]], {"t0": task})
    assert found is not None
    np.testing.assert_array_equal(found, [CODE])
    assert codes_for(tmp_path, [records["a"]], {"t0": dataclasses.replace(task, workload="mended")}) is None


def test_another_version_is_refused_and_told(tmp_path: Path, records, task, caplog) -> None:
    path = tmp_path / "codes" / "part-00000.parquet"
    write_codes(path, {"a": CODE})
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"code_version": b"0"}), path)
    with pytest.raises(DataError, match="version 0"):
        read_codes(path)
    assert codes_for(tmp_path, [records["a"]], {"t0": task}) is None
    assert "version 0" in caplog.text and caplog.records[0].levelname == "WARNING"


def test_truncated_codes_are_told_loudly(tmp_path: Path, caplog) -> None:
    write_toy_dataset(tmp_path / "set", n=20)
    ids = [record.record_id for record in read_records(tmp_path / "set")]
    path = tmp_path / "set" / "codes" / "part-00000.parquet"
    write_codes(path, dict.fromkeys(ids, CODE))
    assert not np.isnan(load_dataset(tmp_path / "set").asts.codes[:, 0]).any() and not caplog.records
    path.write_bytes(path.read_bytes()[:-30])
    data = load_dataset(tmp_path / "set")
    assert data.asts.codes is None
    (told,) = caplog.records
    assert told.levelname == "WARNING" and "part-00000" in told.message and "cdmpp data codes" in told.message


def test_a_wrong_number_of_vectors_is_refused() -> None:
    with pytest.raises(DataError, match="code vectors"):
        AstTable.from_asts([ast(None)]).with_codes(np.zeros((2, CODE_WIDTH), np.float32))
