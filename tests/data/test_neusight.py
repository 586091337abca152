"""Operators of NeuSight's table become records with compact ASTs; known faults are counted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.data.importers.neusight import import_neusight
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_info, read_records, read_tasks, write_info
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.operators.operator import PRODUCTS, EagerOperator
from cdmpp.operators.operator_vector import OPERATOR_NAMES

EMPTY = dict.fromkeys(
    ("batch", "rows", "inner", "cols", "in_channels", "out_channels", "kernel_size", "in_size", "stride", "padding")
)


def row(device: str, op: str, latency_s: float, split: str = "train", **sizes: int) -> dict:
    told = {"torch": "2.1.0+cu121", "cudnn": "8.9.2", "split": split, "source_line": 7, "kernel": None}
    return {**EMPTY, "device": device, "op": op, "dtype": "float32", "latency_s": latency_s, **told, **sizes}


ROWS = [
    row("t4", "linear", 1e-4, rows=64, inner=128, cols=256),
    row("l4", "linear", 5e-5, "test", rows=64, inner=128, cols=512),
    row("l4", "bmm", 4e-5, "test", batch=4, rows=64, inner=32, cols=64),
    row("t4", "conv", 3e-4, batch=2, in_channels=8, out_channels=16, kernel_size=3, in_size=14, stride=1, padding=1),
    row("t4", "ln", 2e-5, rows=64, cols=128),
    row("t4", "addu", 1e-5, rows=64, cols=128),
    row("t4", "addu", 3e-5, rows=64, cols=128),  # measured twice
    row("p4", "linear", 9e-4, rows=64, inner=128, cols=256),  # throttled
    row("t4", "fft", 1e-5, rows=64, cols=128),
    row("t4", "relu", float("nan"), rows=64, cols=128),
    row("t4", "linear", 1e-5, rows=64, cols=128),  # how much is summed?
]


@pytest.fixture
def table(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "ops.parquet")
    return tmp_path


def test_rows_become_programs(table, tmp_path):
    report = import_neusight(table, tmp_path / "out", progress=False)
    assert (report.rows, report.programs, report.tasks) == (11, 6, 6)
    assert report.devices == {"l4": 2, "t4": 4}
    assert set(report.left_out.values()) == {1} and len(report.left_out) == 4
    for reason in ("throttled", "unknown operator 'fft'", "no positive number", "a size of a linear is missing"):
        assert any(reason in why for why in report.left_out), reason
    assert "6 programs of 6 operators (l4 2, t4 4)" in str(report)
    assert read_info(tmp_path / "out")["complete"]
    tasks = read_tasks(tmp_path / "out")
    (twice,) = [record for record in read_records(tmp_path / "out") if len(record.latency_samples_s) == 2]
    assert EagerOperator.from_json(tasks[twice.task_id].op_name) == EagerOperator.parse("add_scalar", "64x128")
    assert twice.latency_s == pytest.approx(2e-5)
    assert twice.schedule == '{"runtime": "torch"}'


def test_they_load_with_their_vectors_and_split_as_published(table, tmp_path):
    import_neusight(table, tmp_path / "out", progress=False)
    dataset = load_dataset(tmp_path / "out", progress=False)
    assert len(dataset) == 6
    vectors = dataset.asts.codes[:, : len(OPERATOR_NAMES)]
    families = vectors[:, [OPERATOR_NAMES.index(f"family_{name}") for name in PRODUCTS]]
    assert families.sum(0).tolist() == [2.0, 1.0, 1.0]
    split = make_split(dataset, "by_network+test_networks:neusight_test", 0)
    assert set(dataset.devices[split.test]) == {"l4"} and set(dataset.devices[split.train]) == {"t4"}


def test_another_table_is_refused_and_nothing_is_written(tmp_path):
    pq.write_table(pa.table({"device": ["t4"]}), tmp_path / "ops.parquet")
    with pytest.raises(DataError, match="lacks the columns .*latency_s"):
        import_neusight(tmp_path / "ops.parquet", tmp_path / "out", progress=False)
    with pytest.raises(DataError, match=r"nothing\.parquet"):
        import_neusight(tmp_path / "nothing.parquet", tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_what_a_stopped_import_left_is_replaced(table, tmp_path):
    import_neusight(table, tmp_path / "out", progress=False)
    write_info(tmp_path / "out", complete=False)
    import_neusight(table, tmp_path / "out", progress=False)
    assert len(read_records(tmp_path / "out")) == 6 and len(load_dataset(tmp_path / "out", progress=False)) == 6


def test_the_command_names_no_device(table, tmp_path, run_script):
    words = ["data", "import", "source=neusight", f"path={table}", f"out={tmp_path / 'out'}"]
    done = run_script("cdmpp/cli/__main__.py", *words, "device=t4")
    assert done.returncode == 2 and "device=t4" in done.stderr and not (tmp_path / "out").exists()
    done = run_script("cdmpp/cli/__main__.py", *words)
    assert done.returncode == 0 and "6 programs of 6 operators" in done.stdout, done.stderr


def test_a_finished_data_set_is_not_written_over(table, tmp_path):
    import_neusight(table, tmp_path / "out", progress=False)
    with pytest.raises(DataError, match="is a data set already"):
        import_neusight(table, tmp_path / "out", progress=False)
