"""Vectors that are derived again: which programs, what is kept of the others, and which reader each is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_data import write_toy_dataset

from benchmarks.publish import reread
from cdmpp.data.derived_table import read_codes, read_readers, write_codes
from cdmpp.data.records import read_records, read_tasks
from cdmpp.machine_code.cpu.code_features import CODE_READER, CODE_WIDTH


@pytest.fixture
def data(tmp_path: Path, monkeypatch) -> dict[str, np.ndarray]:
    """A data set whose vectors do not say of which reader they are."""
    write_toy_dataset(tmp_path / "toy", n=12)
    codes = {record.record_id: np.full(CODE_WIDTH, 3, np.float32) for record in read_records(tmp_path / "toy")}
    write_codes(tmp_path / "toy" / "codes" / "part-00000.parquet", codes)
    monkeypatch.setattr(reread, "DATA", tmp_path)
    return codes


def test_only_what_could_be_derived_is_replaced_and_each_vector_says_its_reader(data, tmp_path, monkeypatch):
    classes = {task.op_class for task in read_tasks(tmp_path / "toy").values()}
    first = next(iter(data))
    monkeypatch.setattr(reread, "reads_bytes", lambda task: True)
    monkeypatch.setattr(reread, "anew", lambda *_: {first: np.full(CODE_WIDTH, 4, np.float32)})
    path = tmp_path / "toy" / "codes" / "part-00000.parquet"
    assert read_readers(path) == {}
    assert reread.derive_again("toy", sorted(classes), tmp_path) == (1, 1)
    after, readers = read_codes(path), read_readers(path)
    assert list(after) == list(data)
    assert all((after[one] == (4 if one == first else 3)).all() for one in data)
    assert readers == {one: CODE_READER if one == first else reread.SHIPPED_READER for one in data}
    monkeypatch.setattr(reread, "anew", lambda *_: {})
    reread.derive_again("toy", sorted(classes), tmp_path)
    assert read_readers(path) == readers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('def main(x: T.Buffer((4,), "bool"), y: T.Buffer((4,), "float32")):\n# with T.sblock("root"):', True),
        ('def main(x: T.Buffer((4,), "uint8")):\n# with T.sblock("root"):', True),
        ('def main(x: T.Buffer((4,), "int64")):\n# with T.sblock("root"):', False),
        (
            'def main(x: T.Buffer((4,), "float32")):\n# with T.sblock("root"):\n z = T.sblock_alloc_buffer("bool")',
            False,
        ),
    ],
)
def test_masks_and_bytes_are_told_from_other_inputs(data, tmp_path, text, expected):
    task = next(iter(read_tasks(tmp_path / "toy").values()))
    assert reread.reads_bytes(replace(task, workload=text)) is expected
