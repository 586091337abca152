"""Code vectors on disk and on their way into batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.code.code_vector import CODE_WIDTH
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.codes import codes_for, read_codes, write_codes
from cdmpp.errors import DataError


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


def test_shipped_codes_are_found_by_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "mine", "schema_version": 1}))
    assert codes_for(tmp_path, ["a"]) is None
    write_codes(tmp_path / "codes" / "part-00000.parquet", {"a": CODE, "b": CODE + 1})
    found = codes_for(tmp_path, ["b", "c", "a"])
    assert found is not None
    np.testing.assert_array_equal(found[[0, 2]], [CODE + 1, CODE])
    assert np.isnan(found[1]).all()


def test_another_version_is_refused_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "mine", "schema_version": 1}))
    path = tmp_path / "codes" / "part-00000.parquet"
    write_codes(path, {"a": CODE})
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"code_version": b"0"}), path)
    with pytest.raises(DataError, match="version 0"):
        read_codes(path)
    assert codes_for(tmp_path, ["a"]) is None


def test_a_wrong_number_of_vectors_is_refused() -> None:
    with pytest.raises(DataError, match="code vectors"):
        AstTable.from_asts([ast(None)]).with_codes(np.zeros((2, CODE_WIDTH), np.float32))
