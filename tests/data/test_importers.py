"""A database becomes records: failures dropped, repeats merged, broken lines named, kills survived."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from cdmpp.data.importers import databases as importers  # noqa: E402
from cdmpp.data.importers.databases import import_database  # noqa: E402
from cdmpp.data.records import read_info, read_records, read_tasks, record_parts  # noqa: E402
from cdmpp.errors import CdmppError, DataError  # noqa: E402
from cdmpp.platform.files import read_table  # noqa: E402
from cdmpp.programs.identity import record_id  # noqa: E402
from cdmpp.programs.replay import replay  # noqa: E402
from tests.data.other_network import other_network as make_other_network  # noqa: E402


def _lines(database: Path) -> list[str]:
    return gzip.decompress((database / "database_tuning_record.json.gz").read_bytes()).decode().splitlines()


def _with_lines(database: Path, folder: Path, lines: list[str]) -> Path:
    shutil.copytree(database, folder)
    (folder / "database_tuning_record.json.gz").unlink()
    (folder / "database_tuning_record.json").write_text("\n".join(lines) + "\n")
    return folder


def test_import(tmp_path, native_database):
    report = import_database(native_database, tmp_path / "out", "a100", "resnet34", progress=False)
    assert (report.lines, report.failed, report.programs, report.written) == (43, 6, 34, 34)
    records, tasks = read_records(tmp_path / "out"), read_tasks(tmp_path / "out")
    assert len(records) == 34 and {r.task_id for r in records} == set(tasks) and len(tasks) == 4
    assert {t.op_class for t in tasks.values()} == {"conv2d", "pool", "winograd", "softmax"}
    for record in records:
        assert record.statistic == "median" and record.latency_s == statistics.median(record.latency_samples_s)
        assert record.record_id == record_id(record.task_id, "a100", record.target, record.schedule)
        assert 0 < record.latency_s < 1
    merged = [r for r in records if r.n_merged > 1]
    assert len(merged) == 3 and all(len(r.latency_samples_s) > 3 and r.spread > 0 for r in merged)
    assert sum(r.n_merged for r in records) == 37
    replay(tasks[records[-1].task_id].workload, records[-1].schedule, records[-1].target)
    info = read_info(tmp_path / "out")
    assert info["complete"] and info["devices"] == ["a100"] and info["counts"] == {"records": 34, "tasks": 4}


def test_legacy_gives_the_same_records(tmp_path, native_database, legacy_database):
    import_database(native_database, tmp_path / "new", "a100", "resnet34", progress=False)
    import_database(legacy_database, tmp_path / "old", "a100", "resnet34", progress=False)
    assert read_records(tmp_path / "old") == read_records(tmp_path / "new")
    assert {t: v.op_class for t, v in read_tasks(tmp_path / "old").items()} == {
        t: v.op_class for t, v in read_tasks(tmp_path / "new").items()
    }


def test_broken_lines_stop_before_anything_is_written(tmp_path, native_database):
    lines = _lines(native_database)
    record = json.loads(lines[4])
    lines[4] = json.dumps([record[0], record[1][:1]])
    lines[8] = lines[8][: len(lines[8]) // 2]
    lines[9] = json.dumps([77, json.loads(lines[9])[1]])
    source = _with_lines(native_database, tmp_path / "db", lines)
    with pytest.raises(DataError, match=r"3 broken lines.*line 5:.*line 9:.*line 10: workload 77"):
        import_database(source, tmp_path / "out", "a100", "resnet34", progress=False)
    assert not (tmp_path / "out").exists()
    report = import_database(source, tmp_path / "out", "a100", "resnet34", on_bad="skip", progress=False)
    assert [bad.number for bad in report.bad] == [5, 9, 10] and report.written == len(read_records(tmp_path / "out"))


def test_empty_and_failed_databases(tmp_path, native_database):
    failed = [line for line in _lines(native_database) if "10000000000" in line or "1e+10" in line or "1e10" in line]
    assert len(failed) == 6
    for name, lines in (("empty", [""]), ("failed", failed)):
        source = _with_lines(native_database, tmp_path / name, lines)
        with pytest.raises(DataError, match="no successful measurement"):
            import_database(source, tmp_path / "out", "a100", "resnet34", progress=False)
    assert not (tmp_path / "out").exists()


def test_wrong_and_unknown_device(tmp_path, native_database):
    with pytest.raises(DataError, match="arch sm_80, v100 has sm_70"):
        import_database(native_database, tmp_path / "out", "v100", "resnet34", progress=False)
    with pytest.raises(CdmppError, match="a100"):
        import_database(native_database, tmp_path / "out", "a1000", "resnet34", progress=False)


def test_misspelt_options(tmp_path, native_database):
    with pytest.raises(DataError, match="choose error or skip"):
        import_database(native_database, tmp_path / "out", "a100", "x", on_bad="skp", progress=False)


def test_foreign_traces_are_refused(tmp_path, native_database):
    lines = [json.loads(line) for line in _lines(native_database)]
    source = _with_lines(native_database, tmp_path / "db", [json.dumps([3 - i, rest]) for i, rest in lines])
    with pytest.raises(DataError, match="none of 12 sampled traces"):
        import_database(source, tmp_path / "out", "a100", "resnet34", progress=False)


def test_continues_after_a_full_disk(tmp_path, native_database, monkeypatch):
    monkeypatch.setattr(importers, "PART_SIZE", 10)
    out, parts, real = tmp_path / "out", [], os.link

    def link(source, target):
        if Path(target).name.startswith("part-"):
            parts.append(target)
            if len(parts) == 3:
                raise OSError(28, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(DataError, match="No space left"):
            import_database(native_database, out, "a100", "resnet34", progress=False)
    assert len(record_parts(out)) == 2 and len(read_records(out)) == 20 and not read_info(out)["complete"]
    assert not list(out.rglob("*.tmp"))
    report = import_database(native_database, out, "a100", "resnet34", progress=False)
    assert (report.present, report.written) == (20, 14) and read_info(out)["complete"]
    assert len({r.record_id for r in read_records(out)}) == 34


def test_continues_after_a_kill(tmp_path, native_database):
    out = tmp_path / "out"
    script = f"""
import os, signal
from cdmpp.data import records
from cdmpp.data.importers import databases as importers
importers.PART_SIZE = 10
real, done = importers.append_records, []
def append(folder, items):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(real(folder, items))
importers.append_records = append
importers.import_database({str(native_database)!r}, {str(out)!r}, "a100", "resnet34", progress=False)
"""
    root = str(Path(__file__).parents[2])
    killed = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": root})
    assert killed.returncode == -9 and len(read_records(out)) == 20
    report = import_database(native_database, out, "a100", "resnet34", progress=False)
    assert (report.present, report.written) == (20, 14)
    whole = import_database(native_database, tmp_path / "whole", "a100", "resnet34", progress=False)
    assert whole.written == 34 and read_records(out) == read_records(tmp_path / "whole")
    assert import_database(native_database, out, "a100", "resnet34", progress=False).written == 0


def start_import(source: Path, out: Path, network: str) -> subprocess.Popen[str]:
    """Another process, in parts of five records, that says when it has read the database and then waits for a line."""
    script = f"""
import sys
from cdmpp.data.importers import databases as importers
importers.PART_SIZE = 5
real = importers._check_replay
def check(*arguments):
    real(*arguments)
    print("ready", flush=True)
    sys.stdin.readline()
importers._check_replay = check
print(importers.import_database({str(source)!r}, {str(out)!r}, "a100", {network!r}, progress=False))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, text=True, **pipes)


def release(processes: list[subprocess.Popen[str]]) -> list[str]:
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=500) for process in processes]
    assert all(process.returncode == 0 for process in processes), answers
    return [out for out, _ in answers]


def test_two_imports_of_one_database_at_once_are_one(tmp_path, native_database):
    out = tmp_path / "out"
    said = release([start_import(native_database, out, "resnet34") for _ in range(2)])
    assert sorted("34 written, 0 were there" in text for text in said) == [False, True]
    assert sorted("0 written, 34 were there" in text for text in said) == [False, True]
    rows = [row for part in record_parts(out) for row in read_table(part).to_pylist()]
    assert len(rows) == len({row["record_id"] for row in rows}) == 34 and len(record_parts(out)) == 7
    assert read_info(out)["complete"] and read_info(out)["counts"]["records"] == 34


def test_two_networks_at_once_share_their_tasks(tmp_path, native_database, other_network):
    out = tmp_path / "out"
    release([start_import(native_database, out, "resnet34"), start_import(other_network, out, "vgg")])
    rows = [row for part in record_parts(out) for row in read_table(part).to_pylist()]
    assert len(rows) == len({row["record_id"] for row in rows}) > 34
    assert all(set(task.networks) == {"resnet34", "vgg"} for task in read_tasks(out).values())
    assert set(read_info(out)["imports"]) == {native_database.name, other_network.name}


def test_a_workload_that_cannot_be_used_costs_its_own_lines(tmp_path, native_database, caplog):
    source = _with_lines(native_database, tmp_path / "db", _lines(native_database))
    path = source / "database_workload.json.gz"
    workloads = gzip.decompress(path.read_bytes()).decode().splitlines()
    workloads[1] = json.dumps(["0", "bm90IGEgZ3JhcGg="])
    path.write_bytes(gzip.compress("\n".join(workloads).encode()))
    hurt = [number for number, line in enumerate(_lines(native_database), start=1) if json.loads(line)[0] == 1]
    with pytest.raises(DataError, match=rf"{len(hurt)} broken lines.*lines {hurt[0]}, {hurt[1]}.*workload"):
        import_database(source, tmp_path / "out", "a100", "resnet34", progress=False)
    assert not (tmp_path / "out").exists() and hurt
    report = import_database(source, tmp_path / "out", "a100", "resnet34", on_bad="skip", progress=False)
    assert [bad.number for bad in report.bad] == hurt and "line 2 of the other file" in report.bad[0].reason
    assert len(read_tasks(tmp_path / "out")) == 3 and 0 < report.written == len(read_records(tmp_path / "out")) < 34
    assert f"left out {len(hurt)} broken lines" in caplog.text and f"{hurt[0]}, {hurt[1]}" in caplog.text


def test_schedules_that_wait_to_be_measured_are_counted_and_left_out(tmp_path, native_database):
    lines = [json.loads(line) for line in _lines(native_database)]
    for line in lines[:3]:
        line[1][1] = None
    source = _with_lines(native_database, tmp_path / "db", [json.dumps(line) for line in lines])
    whole = import_database(native_database, tmp_path / "whole", "a100", "resnet34", progress=False)
    report = import_database(source, tmp_path / "out", "a100", "resnet34", progress=False)
    assert report.unmeasured == 3 and not report.bad and "3 not measured yet" in str(report)
    assert report.lines == whole.lines and 31 <= report.written < whole.written
    for line in lines:
        line[1][1] = None
    waiting = _with_lines(native_database, tmp_path / "waiting", [json.dumps(line) for line in lines])
    with pytest.raises(DataError, match="no successful measurement: 43 lines, 0 failed, 43 not measured yet"):
        import_database(waiting, tmp_path / "none", "a100", "resnet34", progress=False)


@pytest.fixture
def other_network(tmp_path, native_database) -> Path:
    return make_other_network(native_database, tmp_path / "vgg_a100")


def test_second_network_with_other_block_names(tmp_path, native_database, other_network):
    """The same task under other block names: one task, and every trace fits the workload that is kept."""
    out = tmp_path / "out"
    import_database(native_database, out, "a100", "resnet34", progress=False)
    report = import_database(other_network, out, "a100", "vgg", progress=False)
    tasks = read_tasks(out)
    assert (
        report.written > 0 and len(tasks) == 4 and all(set(t.networks) == {"resnet34", "vgg"} for t in tasks.values())
    )
    for record in read_records(out)[34:]:
        replay(tasks[record.task_id].workload, record.schedule, record.target)


def test_script(tmp_path, native_database, run_script):
    command = ["scripts/import_data.py", f"path={native_database}", "device=a100"]
    done = run_script(*command, "network=resnet34", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "34 programs of 4 tasks" in done.stdout and len(read_records(tmp_path / "out")) == 34
    done = run_script(command[0], f"path={tmp_path}", "device=a100", "network=x")
    assert done.returncode == 2 and "not a MetaSchedule database" in done.stderr and "Traceback" not in done.stderr
    done = run_script(*command, "source=tenset")
    assert done.returncode == 2 and "one of metaschedule, tvmscript, ansor_features, neusight" in done.stderr
    done = run_script(*command[:2], "network=x")
    assert done.returncode == 2 and "device=NAME is missing" in done.stderr and "Traceback" not in done.stderr
