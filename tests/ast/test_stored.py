"""Files of stored ASTs that somebody else made: what does not fit is refused by name, nothing reaches a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.ast.table import read_asts, write_asts
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from tests.toy_data import toy_dataset


@pytest.fixture
def path(tmp_path) -> Path:
    asts = toy_dataset(6)[0].asts.with_codes(np.ones((6, CODE_WIDTH), np.float32))
    write_asts(tmp_path / "asts.parquet", [f"p{i}" for i in range(6)], asts)
    return tmp_path / "asts.parquet"


def rewrite(path: Path, name: str, change) -> None:
    table = pq.read_table(path)
    place = table.column_names.index(name)
    changed = change(table.column(place).to_pylist())
    pq.write_table(table.set_column(place, name, changed if isinstance(changed, pa.Array) else pa.array(changed)), path)


def first(items, value):
    return [value, *items[1:]]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("leaf_features", lambda rows: ["x"] * len(rows), "column leaf_features is of type string"),
        ("leaf_features", lambda rows: first(rows, rows[0][:-1]), "do not pair one to one"),
        ("leaf_features", lambda rows: first(rows, None), "1 rows and 0 items without a value"),
        ("leaf_features", lambda rows: first(rows, first(rows[0], None)), "0 rows and 1 items without a value"),
        ("kernel_features", lambda rows: first(rows, []), "without a leaf or without a kernel"),
        ("leaf_positions", lambda rows: first(rows, [*rows[0], 3]), "do not pair one to one"),
        ("leaf_kernels", lambda rows: first(rows, [100] * len(rows[0])), "a kernel that its program has not"),
        ("leaf_kernels", lambda rows: first(rows, [-1] * len(rows[0])), "a kernel that its program has not"),
        ("target_kind", lambda rows: first(rows, 7), "a target kind beyond 1"),
        ("target_kind", lambda rows: first(rows, None), "1 rows without a value"),
        ("record_id", lambda rows: [[1]] * len(rows), "column record_id is of type list"),
        ("code", lambda rows: first(rows, rows[0][:-1]), f"code vectors of another width than {CODE_WIDTH}"),
    ],
)
def test_columns_that_do_not_fit_are_named(path, name, change, said):
    rewrite(path, name, change)
    with pytest.raises(DataError, match=said) as caught:
        read_asts(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["record_id", "leaf_kernels", "leaf_features", "target_kind", "code"])
def test_a_missing_column_is_named(path, name):
    pq.write_table(pq.read_table(path).drop_columns([name]), path)
    with pytest.raises(DataError, match=f"no column {name}"):
        read_asts(path)


def test_versions_that_are_no_text_are_refused(path):
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"extractor_version": b"\xff"}), path)
    with pytest.raises(DataError, match="extractor version"):
        read_asts(path)


def test_wider_types_and_many_row_groups_are_read(path):
    ids, before = read_asts(path)
    rewrite(path, "leaf_kernels", lambda rows: pa.array(rows, pa.list_(pa.int64())))
    pq.write_table(pq.read_table(path), path, row_group_size=2)
    again, table = read_asts(path)
    assert again == ids
    for name in ("leaf_features", "leaf_kernels", "leaf_offsets", "kernel_offsets", "target_kinds", "codes"):
        np.testing.assert_array_equal(getattr(table, name), getattr(before, name))
