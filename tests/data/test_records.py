"""What is written comes back; what cannot be used is named and loses nothing."""

from __future__ import annotations

import dataclasses
import errno
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.data import records
from cdmpp.data.merge import merge_records
from cdmpp.data.records import (
    append_records,
    count_records,
    read_info,
    read_records,
    read_tasks,
    record_parts,
    replace_records,
    write_info,
    write_tasks,
)
from cdmpp.errors import DataError
from cdmpp.platform.files import append_lines, read_lines, write_table
from cdmpp.platform.lock import LOCK_FILE


def test_round_trip_in_writing_order(tmp_path, make_record):
    first = [make_record(2, extra={"line": "7"}, flagged=True), make_record(1)]
    append_records(tmp_path, first)
    append_records(tmp_path, [make_record(3, device="v100")])
    assert append_records(tmp_path, []) is None
    assert [path.name for path in record_parts(tmp_path)] == ["part-00000.parquet", "part-00001.parquet"]
    assert read_records(tmp_path) == [*first, make_record(3, device="v100")]
    assert read_records(tmp_path, "v100") == [make_record(3, device="v100")]
    write_info(tmp_path, name="x")
    assert count_records(tmp_path) == {"a100": (2, 1), "v100": (1, 1)}


def test_tasks_unite_networks_and_keep_their_workload(tmp_path, task):
    write_tasks(tmp_path, [task])
    write_tasks(tmp_path, [dataclasses.replace(task, workload="other names", op_class="dense", networks={"vgg": 1})])
    (stored,) = read_tasks(tmp_path).values()
    assert stored == dataclasses.replace(task, op_class="dense", networks={"resnet34": 2, "vgg": 1})


def test_unknown_columns_are_kept(tmp_path, task, make_record):
    write_tasks(tmp_path, [task])
    path = tmp_path / "tasks.parquet"
    pq.write_table(pq.read_table(path).append_column("colour", pa.array(["red"])), path)
    write_tasks(tmp_path, [dataclasses.replace(task, task_id="t1")])
    assert pq.read_table(path).column("colour").to_pylist() == ["red", None]

    part = append_records(tmp_path, [make_record(1, extra={"a": "b"})])
    pq.write_table(pq.read_table(part).append_column("clock_mhz", pa.array([1410])), part)
    assert read_records(tmp_path)[0].extra == {"a": "b", "clock_mhz": "1410"}


@pytest.mark.parametrize("latency", [0.0, -1e-3, float("nan"), float("inf"), None, "fast"])
def test_impossible_latency_is_not_written(tmp_path, make_record, latency):
    with pytest.raises(DataError, match="positive number of seconds"):
        append_records(tmp_path, [make_record(1), make_record(2, latency_s=latency)])
    assert record_parts(tmp_path) == []


def test_bad_rows_are_named_and_skipped_on_request(tmp_path, make_record, caplog):
    part = append_records(tmp_path, [make_record(n) for n in range(6)])
    rows = pq.read_table(part).to_pylist()
    rows[1]["latency_s"] = 0.0
    rows[2]["latency_samples_s"] = [1e-3, float("nan")]
    rows[3]["task_id"] = None
    rows[4]["extra"] = "{"
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(part)), part)
    with pytest.raises(DataError) as error:
        read_records(tmp_path)
    assert all(f"row {n}" in str(error.value) for n in (1, 2, 3, 4)) and "row 0" not in str(error.value)
    assert [r.record_id for r in read_records(tmp_path, on_bad="skip")] == [f"{n:016x}" for n in (0, 5)]
    assert "4 unusable rows" in caplog.text


@pytest.mark.parametrize("damage", ["truncate", "garbage", "empty"])
def test_damaged_parquet_is_named(tmp_path, make_record, damage):
    append_records(tmp_path, [make_record(1)])
    part = append_records(tmp_path, [make_record(2)])
    content = part.read_bytes()
    part.write_bytes({"truncate": content[: len(content) // 2], "garbage": b"x" * 500, "empty": b""}[damage])
    with pytest.raises(DataError, match=r"part-00001\.parquet.*corrupt or truncated"):
        read_records(tmp_path)
    assert [r.record_id for r in read_records(tmp_path, on_bad="skip")] == [make_record(1).record_id]


def test_missing_column_and_newer_schema(tmp_path, make_record):
    part = append_records(tmp_path, [make_record(1)])
    table = pq.read_table(part)
    pq.write_table(table.drop_columns(["latency_s"]), part)
    with pytest.raises(DataError, match="latency_s"):
        read_records(tmp_path)
    pq.write_table(table.replace_schema_metadata({"cdmpp.schema_version": "99"}), part)
    with pytest.raises(DataError, match="schema version 99"):
        read_records(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(DataError, match="schema version 99"):
        read_info(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(DataError, match="JSON"):
        read_info(tmp_path)


@pytest.mark.parametrize("where", ["replace", "write"])
def test_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, make_record, task, where):
    append_records(tmp_path, [make_record(1)])
    write_tasks(tmp_path, [task])

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "replace":
            patch.setattr(os, "link", fail)
        patch.setattr(*((os, "replace", fail) if where == "replace" else (pq, "write_table", fail)))
        with pytest.raises(DataError, match="No space left.*run the same command again"):
            append_records(tmp_path, [make_record(2)])
        with pytest.raises(DataError, match="No space left"):
            write_tasks(tmp_path, [dataclasses.replace(task, task_id="t1")])
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    assert names == ["part-00000.parquet", "tasks.parquet"]
    assert len(read_records(tmp_path)) == 1 and list(read_tasks(tmp_path)) == ["t0"]
    append_records(tmp_path, [make_record(2)])
    assert len(read_records(tmp_path)) == 2


def test_a_part_that_another_writer_made_is_never_replaced(tmp_path, make_record, monkeypatch):
    """A writer without the lock, such as an older version, comes in between numbering and writing."""
    real, rivals = records.write_table, [2, 3]

    def beaten(path, table, new=False):
        if rivals:
            row = {**vars(make_record(rivals.pop())), "extra": "{}"}
            real(path, pa.Table.from_pylist([row], schema=table.schema))
        real(path, table, new)

    append_records(tmp_path, [make_record(1)])
    monkeypatch.setattr(records, "write_table", beaten)
    part = append_records(tmp_path, [make_record(4)])
    assert part.name == "part-00003.parquet" and not list(tmp_path.rglob("*.tmp"))
    assert [int(r.record_id, 16) for r in read_records(tmp_path)] == [1, 3, 2, 4]


def test_new_parts_without_hard_links(tmp_path, make_record, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert [append_records(tmp_path, [make_record(n)]).name[5:10] for n in (1, 2)] == ["00000", "00001"]
    with pytest.raises(FileExistsError):
        write_table(tmp_path / "records" / "part-00001.parquet", pa.table({}), new=True)
    assert len(read_records(tmp_path)) == 2


def test_a_folder_with_doubled_rows_reads_right(tmp_path, make_record, caplog):
    """What two imports at once left behind before folders were locked."""
    differing = make_record(2, latency_samples_s=(6e-3,), latency_s=6e-3)
    write_info(tmp_path, name="x")
    append_records(tmp_path, [make_record(1), make_record(2), make_record(3, device="v100")])
    append_records(tmp_path, [make_record(1), differing, make_record(3, device="v100")])
    append_records(tmp_path, [make_record(1)])
    found = read_records(tmp_path)
    assert [r.record_id for r in found] == [make_record(n).record_id for n in (1, 2, 3)]
    assert found[0] == make_record(1) and found[1] == merge_records([make_record(2), differing])
    assert found[1].latency_samples_s == (2e-3, 1e-3, 4e-3, 6e-3) and found[1].latency_s == 3e-3
    assert len(caplog.records) == 1 and "3 copies dropped, 1 programs merged" in caplog.text
    assert count_records(tmp_path) == {"a100": (2, 1), "v100": (1, 1)}
    better = make_record(1, latency_s=1e-3)
    assert replace_records(tmp_path, [better]) == 1
    assert read_records(tmp_path)[0] == better


def test_merged_visits_stay_told_apart(make_record):
    one = make_record(1, extra={"samples_per_visit": "2,1", "quiet_visits": "1,0"})
    two = make_record(1, latency_samples_s=(5e-3,), extra={"samples_per_visit": "1", "quiet_visits": "1"})
    merged = merge_records([one, two, one])
    assert merged.extra == {"samples_per_visit": "2,1,1", "quiet_visits": "1,0,1"}
    assert len(merged.latency_samples_s) == 4


def test_a_line_cut_short_by_a_kill_costs_itself_only(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_lines(path, [1, 2])
    path.write_text(path.read_text() + '{"record_id": "00')
    append_lines(path, [{"a": 3}])
    assert read_lines(path) == [1, 2, {"a": 3}]


def test_missing_folder(tmp_path):
    assert read_records(tmp_path / "nowhere") == []
    with pytest.raises(DataError, match="no such file"):
        read_info(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["latency_s", "spread", "n_merged"])
def test_a_column_of_another_type_is_named(tmp_path, make_record, name):
    write_info(tmp_path, name="x")
    path = append_records(tmp_path, [make_record(1)])
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(["x"])), path)
    with pytest.raises(DataError, match=f"column {name} of type string cannot be read as"):
        read_records(tmp_path)
    assert read_records(tmp_path, on_bad="skip") == []


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, "\x00"])
def test_json_beyond_what_can_be_read_is_named(tmp_path, text):
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(DataError, match="dataset.json"):
        read_info(tmp_path)


def test_a_version_that_is_no_text_is_refused(tmp_path, make_record):
    write_info(tmp_path, name="x")
    path = append_records(tmp_path, [make_record(1)])
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"cdmpp.schema_version": b"\xff"}), path)
    with pytest.raises(DataError, match="schema version"):
        read_records(tmp_path)
