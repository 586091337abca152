"""Tuning databases: order, broken lines by number, the old format equal to the new one."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

tvm_ffi = pytest.importorskip("tvm_ffi")
pytest.importorskip("tvm")

from cdmpp.errors import DataError  # noqa: E402
from cdmpp.programs.database import (  # noqa: E402
    BadLine,
    TuningLine,
    _graph_of_line,
    read_lines,
    read_workloads,
)
from cdmpp.programs.legacy import convert_trace, legacy_to_script  # noqa: E402
from cdmpp.programs.replay import replay, replay_on  # noqa: E402
from cdmpp.programs.script import parse_text  # noqa: E402
from cdmpp.programs.writer import is_legacy_graph  # noqa: E402


def test_lines_keep_file_order_and_failures(native_database):
    lines = list(read_lines(native_database))
    assert [line.number for line in lines] == list(range(1, 44))
    assert sum(line.failed for line in lines) == 6
    assert all(isinstance(line, TuningLine) and len(json.loads(line.schedule)) == 2 for line in lines)


def test_legacy_equals_converted(native_database, legacy_database):
    for folder, legacy in ((legacy_database, True), (native_database, False)):
        path = folder / "database_workload.json.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        assert all(is_legacy_graph(_graph_of_line(path, 1, line)) == legacy for line in lines)
    pairs = zip(read_workloads(legacy_database), read_workloads(native_database), strict=True)
    assert all(tvm_ffi.structural_equal(old, new) for old, new in pairs)
    assert list(read_lines(legacy_database)) == list(read_lines(native_database))


def test_every_trace_replays(native_database, fixture_modules):
    for line in read_lines(native_database):
        if not line.failed:
            scheduled = replay_on(fixture_modules[line.workload], line.schedule)
            assert not tvm_ffi.structural_equal(scheduled.mod, fixture_modules[line.workload])


def test_replay_from_text(native_database, fixture_modules):
    line = next(iter(read_lines(native_database)))
    program = replay(fixture_modules[line.workload].script(), line.schedule, line.target, task_id="t")
    assert tvm_ffi.structural_equal(program.module, replay_on(fixture_modules[line.workload], line.schedule).mod)
    assert program.trace == line.schedule and program.task_id == "t" and str(program.target.kind) == "cuda"


def test_replay_of_a_foreign_trace_is_refused(native_database, fixture_modules):
    line = next(line for line in read_lines(native_database) if line.workload == 0)
    with pytest.raises(DataError, match="does not replay"):
        replay(fixture_modules[3].script(), line.schedule, line.target)
    with pytest.raises(DataError, match="TVMScript"):
        replay("def nonsense(", line.schedule, line.target)
    with pytest.raises(DataError, match="target"):
        replay(fixture_modules[0].script(), line.schedule, "{")


def test_a_schedule_that_was_not_measured_yet_is_read(tmp_path, native_database):
    shutil.copytree(native_database, tmp_path / "db")
    (tmp_path / "db" / "database_tuning_record.json.gz").unlink()
    line = json.dumps([0, [[[], []], None, {"kind": "cuda"}, []]])
    (tmp_path / "db" / "database_tuning_record.json").write_text(line + "\n")
    (found,) = read_lines(tmp_path / "db")
    assert isinstance(found, TuningLine) and not found.measured and not found.failed


def _with_constant(graph: dict) -> dict:
    """The graph of a legacy workload with its last input turned into an ``AllocateConst``."""
    nodes = graph["nodes"]

    def attrs(index) -> dict:
        return nodes[int(index)]["attrs"]

    function = attrs(nodes[int(attrs(graph["root"])["functions"])]["data"][1])
    parameters, buffers = nodes[int(function["params"])]["data"], nodes[int(function["buffer_map"])]["data"]
    removed = parameters.pop(-2)
    place = buffers.index(removed)
    buffer = buffers[place + 1]
    del buffers[place : place + 2]
    root = attrs(attrs(function["body"])["block"])
    nodes.append(
        {"type_key": "tir.AllocateConst", "attrs": {"buffer_var": attrs(buffer)["data"], "body": root["body"]}}
    )
    root["body"] = str(len(nodes) - 1)
    return graph


def test_a_constant_in_a_legacy_workload_becomes_a_parameter(legacy_database, tmp_path):
    lines = gzip.decompress((legacy_database / "database_workload.json.gz").read_bytes()).decode().splitlines()
    converted = 0
    for number, line in enumerate(lines):
        text = _graph_of_line(tmp_path, number, line)
        plain = parse_text(legacy_to_script(text), "plain")
        if len(plain["main"].params) > 2:
            changed = parse_text(legacy_to_script(json.dumps(_with_constant(json.loads(text)))), "with a constant")
            assert tvm_ffi.structural_equal(changed, plain)
            converted += 1
    assert converted


BROKEN = {
    "not json": "[0, [[",
    "no workload index": json.dumps([[[[], []], [1e-3], {"kind": "cuda"}, []]]),
    "missing fields": json.dumps([0, [[[], []]]]),
    "trace without decisions": json.dumps([0, [[[]], [1e-3], {"kind": "cuda"}, []]]),
    "zero latency": json.dumps([0, [[[], []], [1e-3, 0.0], {"kind": "cuda"}, []]]),
    "negative latency": json.dumps([0, [[[], []], [-1.0], {"kind": "cuda"}, []]]),
    "NaN latency": '[0, [[[], []], [NaN], {"kind": "cuda"}, []]]',
    "no latency": json.dumps([0, [[[], []], [], {"kind": "cuda"}, []]]),
    "text latency": json.dumps([0, [[[], []], ["fast"], {"kind": "cuda"}, []]]),
    "no target": json.dumps([0, [[[], []], [1e-3], {}, []]]),
    "instruction of three parts": json.dumps([0, [[[["GetSBlock", [], []]], []], [1e-3], {"kind": "cuda"}, []]]),
}


def test_broken_lines_are_numbered(tmp_path, native_database):
    shutil.copytree(native_database, tmp_path / "db")
    (tmp_path / "db" / "database_tuning_record.json.gz").unlink()
    (tmp_path / "db" / "database_tuning_record.json").write_text("\n".join(BROKEN.values()) + "\n")
    lines = list(read_lines(tmp_path / "db"))
    assert [line.number for line in lines] == list(range(1, len(BROKEN) + 1))
    assert all(isinstance(line, BadLine) and line.reason for line in lines)


def test_truncated_gzip_names_the_line(tmp_path, native_database):
    shutil.copytree(native_database, tmp_path / "db")
    path = tmp_path / "db" / "database_tuning_record.json.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"after line \d+"):
        list(read_lines(tmp_path / "db"))


def test_broken_workload_names_the_line(tmp_path, native_database):
    shutil.copytree(native_database, tmp_path / "db")
    path = tmp_path / "db" / "database_workload.json.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[2] = json.dumps(["0", "AAAA"])
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    workloads = read_workloads(tmp_path / "db")
    assert [i for i, workload in enumerate(workloads) if isinstance(workload, BadLine)] == [2]
    assert workloads[2].number == 3 and "line 3" in str(workloads[2])
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="empty"):
        read_workloads(tmp_path / "db")


def test_folder_without_database(tmp_path):
    with pytest.raises(DataError, match="database_workload.json"):
        read_workloads(tmp_path)


def test_trace_conversion():
    old = [[["GetBlock", [], ["b", "main"], ["b0"]], ["Split", ["l0", 2, 4], [1], ["l1", "l2"]]], [[1, [2, 4]]]]
    (block, split), decisions = convert_trace(old)
    assert block[0] == "GetSBlock" and split[2] == [1, 0] and decisions == [[1, [2, 4]]]
    assert convert_trace([[block, split], decisions]) == [[block, split], decisions]


def test_unknown_legacy_nodes_are_named():
    with pytest.raises(DataError, match="legacy"):
        legacy_to_script("{}")
    with pytest.raises(DataError, match="legacy"):
        legacy_to_script("not json")


def test_a_line_nested_beyond_what_can_be_read_is_a_bad_line(native_database, tmp_path):
    folder = tmp_path / "database"
    folder.mkdir()
    for name in ("database_workload.json", "database_tuning_record.json"):
        lines = gzip.decompress((native_database / f"{name}.gz").read_bytes()).decode().splitlines()
        (folder / name).write_text("\n".join([lines[0], "[" * 100_000]) + "\n")
    good, bad = read_lines(folder)
    assert isinstance(bad, BadLine) and "nested too deep" in bad.reason and not isinstance(good, BadLine)
    assert [isinstance(found, BadLine) for found in read_workloads(folder)] == [False, True]
