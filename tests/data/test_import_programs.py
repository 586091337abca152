"""Programs with latencies from elsewhere become records: restored as given, checked line by line, added once."""

from __future__ import annotations

import dataclasses
import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

from cdmpp import devices  # noqa: E402
from cdmpp.ast.table import AstTable  # noqa: E402
from cdmpp.data.importers.databases import import_database  # noqa: E402
from cdmpp.data.importers.programs import import_programs  # noqa: E402
from cdmpp.data.loading import load_dataset  # noqa: E402
from cdmpp.data.records import read_info, read_records, read_tasks, record_parts, replace_records  # noqa: E402
from cdmpp.errors import DataError, UnknownDeviceError  # noqa: E402
from cdmpp.predict.program_batch import ReadOptions  # noqa: E402
from cdmpp.predict.read import read_batch  # noqa: E402
from cdmpp.programs.database import read_lines, read_workloads  # noqa: E402
from cdmpp.programs.identity import record_id  # noqa: E402
from cdmpp.programs.replay import replay_on  # noqa: E402
from tests.ast.programs import matmul_cpu  # noqa: E402
from tests.programs.attacks import EXPRESSIONS, SCRIPT  # noqa: E402

pytestmark = pytest.mark.tvm
DEVICE = "xeon-icelake"


@pytest.fixture(scope="module")
def tuned(native_database) -> list[tuple[str, list, str, list[float]]]:
    """(workload, trace, scheduled text, seconds) of two lines of each workload of a real database."""
    modules, chosen = read_workloads(native_database), {}
    for line in read_lines(native_database):
        if line.measured and not line.failed:
            chosen.setdefault(line.workload, {}).setdefault(line.schedule, line)
    found = []
    for index, lines in sorted(chosen.items()):
        for line in list(lines.values())[:2]:
            text = replay_on(modules[index], line.schedule).mod.script()
            found.append((modules[index].script(), json.loads(line.schedule), text, list(line.seconds)))
    return found


def write(path: Path, *lines: dict | str) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def elementwise(extent: int = 8, **fields) -> dict:
    return {"tvmscript": SCRIPT.replace("8", str(extent)), "latency_s": 1e-6 * extent, **fields}


def imported(source: Path, out: Path, **options):
    return import_programs(source, out, options.pop("device", DEVICE), progress=False, **options)


def predicted(folder: Path, device: str, *texts: str) -> AstTable:
    """What a model would see of these programs, given as a script."""
    (folder / "script.py").write_text("\n\n".join(texts))
    return read_batch(folder / "script.py", ReadOptions(devices.get(device))).asts


def assert_equal(asts: AstTable, others: AstTable) -> None:
    for field in dataclasses.fields(AstTable):
        np.testing.assert_array_equal(getattr(asts, field.name), getattr(others, field.name), field.name)


def test_scheduled_programs_read_as_they_are_predicted(tmp_path, tuned):
    lines = [{"tvmscript": text, "latency_samples_s": seconds} for _, _, text, seconds in tuned]
    report = imported(write(tmp_path / "a.jsonl", *lines), tmp_path / "out", device="a100", network="resnet34")
    assert report.written == len(tuned) == 8 and report.tasks == 8
    records = read_records(tmp_path / "out")
    assert {record.schedule for record in records} == {"[[],[]]"}
    loaded = load_dataset(tmp_path / "out", "a100", progress=False)
    assert_equal(loaded.asts, predicted(tmp_path, "a100", *(text for _, _, text, _ in tuned)))
    assert loaded.latency_s.tolist() == [np.median(seconds) for _, _, _, seconds in tuned]


def test_a_program_for_a_cpu_reads_as_it_is_predicted(tmp_path):
    text = matmul_cpu()[0]["main"].script()  # a function without a module
    assert "class" not in text
    imported(write(tmp_path / "a.jsonl", {"tvmscript": text, "latency_s": 1e-3}), tmp_path / "out")
    assert_equal(load_dataset(tmp_path / "out", progress=False).asts, predicted(tmp_path, DEVICE, text))
    (task,) = read_tasks(tmp_path / "out").values()
    assert (task.op_class, task.networks, task.io_bytes) == ("dense", {}, 3 * 64 * 64 * 4)


def test_traces_give_the_records_of_their_database(tmp_path, tuned, native_database):
    """The same ids, labels and tasks, and the ASTs of the programs that the traces make."""
    target = next(read_lines(native_database)).target
    lines = [
        {"workload": workload, "trace": trace, "latency_samples_s": seconds, "target": json.loads(target)}
        for workload, trace, _, seconds in tuned
    ]
    imported(write(tmp_path / "a.jsonl", *lines), tmp_path / "out", device="a100", network="resnet34")
    import_database(native_database, tmp_path / "database", "a100", "resnet34", progress=False)
    theirs = {record.record_id: record for record in read_records(tmp_path / "database")}
    for record in read_records(tmp_path / "out"):
        other = theirs[record.record_id]
        assert (record.task_id, record.schedule, record.target) == (other.task_id, other.schedule, other.target)
        assert record.n_merged < other.n_merged or record.latency_samples_s == other.latency_samples_s
    tasks, others = read_tasks(tmp_path / "out"), read_tasks(tmp_path / "database")
    for task in tasks.values():
        assert task == dataclasses.replace(others[task.task_id], origin="tvmscript:a.jsonl")
    loaded = load_dataset(tmp_path / "out", "a100", progress=False)
    assert_equal(loaded.asts, predicted(tmp_path, "a100", *(text for _, _, text, _ in tuned)))


def test_a_trace_fits_the_block_names_of_the_workload_that_is_kept(tmp_path, tuned):
    workload, trace, _, seconds = next(item for item in tuned if '"pad_temp"' in item[0])
    renamed = (
        workload.replace('"pad_temp"', '"padded"'),
        json.loads(json.dumps(trace).replace('"pad_temp"', '"padded"')),
    )
    first = {"workload": workload, "trace": trace, "latency_samples_s": seconds}
    again = {"workload": renamed[0], "trace": renamed[1], "latency_s": 2 * max(seconds)}
    assert first["trace"] != again["trace"]
    report = imported(write(tmp_path / "a.jsonl", first, again), tmp_path / "out", device="a100")
    (record,) = read_records(tmp_path / "out")
    assert (report.written, report.tasks, record.n_merged) == (1, 1, 2)
    (task,) = read_tasks(tmp_path / "out").values()
    assert record.record_id == record_id(task.task_id, "a100", record.target, record.schedule)
    assert len(load_dataset(tmp_path / "out", progress=False)) == 1


def test_labels_and_what_is_known_of_them(tmp_path):
    lines = [
        elementwise(8),
        elementwise(16, latency_s=None, latency_samples_s=[3e-6, 1e-6, 2e-6]),
        elementwise(24, latency_s=1e-6, latency_samples_s=[3e-6, 1e-6, 2e-6], name="mine", network="net"),
        elementwise(32, measured_at="2026-01-31T12:00:00+02:00", software={"tvm": "0.27"}),
        elementwise(40, latency_s=1e10),  # how MetaSchedule notes a failure
        "",
        elementwise(8, latency_s=4e-6),
    ]
    report = imported(write(tmp_path / "a.jsonl", *lines), tmp_path / "out", network="other")
    assert str(report).startswith(
        "6 lines: 1 failed measurements dropped, 0 broken lines, 1 repeats merged; 4 programs"
    )
    first, second, third, fourth = read_records(tmp_path / "out")
    assert first.latency_samples_s == (8e-6, 4e-6) and first.latency_s == pytest.approx(6e-6) and first.n_merged == 2
    assert first.flagged and first.spread == pytest.approx(1 / 3)
    assert (second.latency_s, second.statistic, second.latency_min_s) == (2e-6, "median", 1e-6)
    assert (third.latency_s, third.statistic, third.latency_median_s) == (1e-6, "given", 2e-6)
    assert (fourth.measured_at, fourth.software) == ("2026-01-31T10:00:00+00:00", '{"tvm": "0.27"}')
    assert fourth.extra == {"file": "a.jsonl", "line": "4"} and fourth.protocol == "tvmscript"
    tasks = read_tasks(tmp_path / "out")
    assert (tasks[third.task_id].op_name, tasks[third.task_id].networks) == ("mine", {"net": 1})
    assert (tasks[first.task_id].op_name, tasks[first.task_id].networks) == ("B", {"other": 1})


TRACE = [[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[1]", "expected a JSON object with fields among tvmscript"),
        (elementwise(latency_ms=1), "unknown fields latency_ms; known: tvmscript"),
        (elementwise(latency_s=None), "latency_s and latency_samples_s are missing"),
        (elementwise(latency_s=0), "latency_s holds 0: must be a positive"),
        (elementwise(latency_s="1"), "latency_s holds 1: must be a positive"),
        (elementwise(latency_s=True), "latency_s holds True"),
        (elementwise(latency_s=float("nan")), "latency_s holds nan"),
        (elementwise(latency_s=10**400), "latency_s holds 1000"),
        (elementwise(latency_samples_s=[]), r"latency_samples_s is \[\]: must be a list"),
        (elementwise(latency_samples_s=[8e-6, -1]), "latency_samples_s holds -1"),
        (elementwise(latency_samples_s=[8e-3]), "latency_s is 8e-06, outside its samples 0.008 to 0.008"),
        ({"latency_s": 1}, "either tvmscript"),
        (elementwise(workload=SCRIPT, trace=TRACE), "either tvmscript"),
        ({"workload": SCRIPT, "latency_s": 1}, "trace is missing"),
        ({"trace": TRACE, "latency_s": 1}, "workload is missing"),
        ({"workload": SCRIPT, "trace": TRACE, "latency_s": 1}, "the schedule trace does not replay on its workload"),
        ({"workload": SCRIPT, "trace": [TRACE], "latency_s": 1}, r"trace is no \[instructions, decisions\]"),
        ({"workload": SCRIPT, "trace": [[1], []], "latency_s": 1}, r"trace is no \[instructions, decisions\]"),
        ({"workload": SCRIPT, "trace": [[], []], "latency_s": 1, "task": "x"}, "task is for tvmscript"),
        (elementwise(task=3), "task is '3': must be a text"),
        (elementwise(tvmscript=3), "tvmscript is '3': must be a text"),
        (elementwise(network=" "), "network is ' ': must be a text"),
        (elementwise(tvmscript="x = 1"), "cannot parse the TVMScript.*a function, or a class without bases, is wanted"),
        (elementwise(tvmscript=SCRIPT.replace("T.max(", "T.maxx(")), r"did you mean T.max\?"),
        (elementwise(tvmscript=SCRIPT + SCRIPT.partition("\n\n")[2]), "one function or module class is wanted"),
        (elementwise(target="llvm"), "target is 'llvm': must be a mapping"),
        (elementwise(target={"kind": "llvm", "cl-opt": "-x"}), "the target option 'cl-opt' is not known"),
        (elementwise(measured_at="yesterday"), "measured_at is 'yesterday': must be a time"),
        (elementwise(measured_at="0001-01-01T00:00:00+10:00"), "measured_at is"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_written(tmp_path, line, message):
    source = write(tmp_path / "a.jsonl", elementwise(16), "", line)
    with pytest.raises(DataError, match=rf"1 broken lines, nothing was imported: .*a\.jsonl line 3: .*{message}"):
        imported(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = imported(source, tmp_path / "out", on_bad="skip")
    assert len(report.bad) == 1 and len(read_records(tmp_path / "out")) == 1


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path):
    source = write(tmp_path / "a.jsonl", elementwise())
    source.write_bytes(source.read_bytes() + b'{"name": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl line 2: not JSON"):
        imported(source, tmp_path / "out")


def test_skipped_lines_are_logged_by_file_and_number(tmp_path, caplog):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", elementwise(8), "{")
    write(tmp_path / "in" / "b.jsonl.gz", elementwise(16, latency_s=-1), elementwise(24))
    report = imported(tmp_path / "in", tmp_path / "out", on_bad="skip")
    assert "left out 2 broken lines" in caplog.text and "b.jsonl.gz line 1: latency_s holds -1" in caplog.text
    assert (report.lines, report.written) == (4, 2) and read_info(tmp_path / "out")["imports"]["in"]["broken"] == 2
    assert [record.extra["file"] for record in read_records(tmp_path / "out")] == ["a.jsonl", "b.jsonl.gz"]


def test_where_nothing_is_left_nothing_is_written(tmp_path):
    (tmp_path / "bare").mkdir()
    for source, message in (
        (write(tmp_path / "failed.jsonl", elementwise(latency_s=1e10)), "no successful measurement: 1 lines, 1 failed"),
        (write(tmp_path / "empty.jsonl"), "no successful measurement: 0 lines"),
        (tmp_path / "nowhere.jsonl", "no such file: .*nowhere.jsonl"),
        (tmp_path / "bare", r"bare holds no \*.jsonl"),
    ):
        with pytest.raises(DataError, match=message):
            imported(source, tmp_path / "out")
    cut = write(tmp_path / "cut.jsonl.gz", elementwise())
    cut.write_bytes(cut.read_bytes()[:-12])
    with pytest.raises(DataError, match="cut.jsonl.gz, it ends early"):
        imported(cut, tmp_path / "out", on_bad="skip")
    assert not (tmp_path / "out").exists()


def test_another_kind_of_device_stops_even_where_bad_lines_are_skipped(tmp_path):
    source = write(tmp_path / "a.jsonl", elementwise(), elementwise(16, target={"kind": "cuda", "arch": "sm_80"}))
    for on_bad in ("error", "skip"):
        with pytest.raises(DataError, match=r"a\.jsonl line 2 is not of device xeon-icelake: the target has kind cuda"):
            imported(source, tmp_path / "out", on_bad=on_bad)
    with pytest.raises(DataError, match="choose error or skip"):
        imported(source, tmp_path / "out", on_bad="skp")
    with pytest.raises(UnknownDeviceError):
        imported(source, tmp_path / "out", device="xeon")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ["tvmscript", "workload"])
def test_text_that_would_run_something_is_refused(tmp_path, monkeypatch, field):
    (tmp_path / "here").mkdir()
    lines = [{field: SCRIPT.replace("T.float32(0)", attack), "latency_s": 1} for attack in EXPRESSIONS]
    if field == "workload":
        lines = [{**line, "trace": [[], []]} for line in lines]
    source = write(tmp_path / "a.jsonl", *lines, elementwise())
    monkeypatch.chdir(tmp_path / "here")
    report = imported(source, tmp_path / "out", on_bad="skip")
    assert len(report.bad) == len(EXPRESSIONS) > 10 and report.written == 1 and not list(Path().iterdir())


def test_a_rerun_adds_what_is_new(tmp_path):
    out, source = tmp_path / "out", write(tmp_path / "a.jsonl", elementwise(8), elementwise(16))
    assert imported(source, out, network="one").written == 2
    before = read_records(out)
    report = imported(source, out, network="two")
    assert (report.written, report.present) == (0, 2) and read_records(out) == before and len(record_parts(out)) == 1
    write(source, elementwise(8), elementwise(24), elementwise(16))
    assert imported(source, out, network="two").written == 1
    assert [record.latency_s for record in read_records(out)] == pytest.approx([8e-6, 16e-6, 24e-6])
    networks = [read_tasks(out)[record.task_id].networks for record in read_records(out)]
    assert networks == [{"one": 1, "two": 1}, {"one": 1, "two": 1}, {"two": 1}]
    info = read_info(out)
    assert info["complete"] and info["counts"] == {"records": 3, "tasks": 3} and info["devices"] == [DEVICE]


def test_one_task_of_several_networks(tmp_path):
    lines = [elementwise(network="one"), elementwise(network="two"), elementwise()]
    imported(write(tmp_path / "a.jsonl", *lines), tmp_path / "out", network="three")
    (task,) = read_tasks(tmp_path / "out").values()
    assert task.networks == {"one": 1, "two": 1, "three": 1}


def test_schedules_of_one_task_share_its_id(tmp_path, tuned):
    """Each is read as itself, whichever of them stands for the task, also where a later import adds one."""
    texts = [text for _, _, text, _ in tuned[:4]]
    groups = ["conv", "conv", "pool", "conv"]
    lines = [
        {"tvmscript": text, "task": group, "latency_s": 1e-3 * (row + 1)}
        for row, (text, group) in enumerate(zip(texts, groups, strict=True))
    ]
    out = tmp_path / "out"
    assert imported(write(tmp_path / "a.jsonl", *lines[:3]), out, device="a100").tasks == 2
    assert imported(write(tmp_path / "b.jsonl", lines[3], lines[0]), out, device="a100").written == 1
    loaded = load_dataset(out, "a100", progress=False)
    ids = loaded.task_ids.tolist()
    assert ids[0] == ids[1] == ids[3] != ids[2] and len(read_tasks(out)) == 2
    assert_equal(loaded.asts, predicted(tmp_path, "a100", *texts))
    for record in read_records(out):
        assert record.record_id == record_id(record.task_id, "a100", record.target, record.schedule)
    again = imported(write(tmp_path / "a.jsonl", *lines), out, device="a100")
    assert (again.written, again.present) == (0, 4)


def test_a_stored_program_that_would_run_something_is_refused(tmp_path, monkeypatch):
    """As a record of somebody's data set may hold one."""
    out = tmp_path / "out"
    imported(write(tmp_path / "a.jsonl", elementwise(task="x")), out)
    (record,) = read_records(out)
    assert record.schedule == SCRIPT
    replace_records(out, [dataclasses.replace(record, schedule=SCRIPT.replace("T.float32(0)", EXPRESSIONS[0]))])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(DataError, match="no compact AST for 1 of 1 records.*is not TVMScript"):
        load_dataset(out, progress=False)
    assert not list(Path().iterdir())


def test_joins_a_folder_of_another_source(tmp_path, native_database, tuned):
    out = tmp_path / "out"
    import_database(native_database, out, "a100", "resnet34", progress=False)
    workload, trace, text, seconds = tuned[0]
    lines = [{"tvmscript": text, "latency_s": 1e-3}, {"workload": workload, "trace": trace, "latency_s": 1e-3}]
    report = imported(write(tmp_path / "a.jsonl", *lines), out, device="a100", network="mine")
    info = read_info(out)
    assert set(info["imports"]) == {native_database.name, "a.jsonl"} and info["counts"]["tasks"] == 5
    assert report.written == info["counts"]["records"] - 34
    assert sum("mine" in task.networks for task in read_tasks(out).values()) == 2


def test_command(tmp_path, run_script, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", elementwise(8), elementwise(16))
    command = partial(run_script, "cdmpp/cli/__main__.py")
    words = ("data", "import", "source=tvmscript", "path=a.jsonl", f"device={DEVICE}")
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert f"datasets/programs_{DEVICE}: 2 lines" in done.stdout and "2 programs of 2 tasks, 2 written" in done.stdout
    assert len(read_records(tmp_path / "datasets" / f"programs_{DEVICE}")) == 2
    assert "0 written, 2 were there" in command(*words).stdout
    assert "\nelsewhere: 2 lines" in command(*words, "network=net", "out=elsewhere").stdout
    assert read_info(tmp_path / "elsewhere")["imports"]["a.jsonl"]["network"] == "net"
    write(tmp_path / "a.jsonl", elementwise(24, latency_s=None))
    done = command(*words)
    assert (
        done.returncode == 2
        and done.stderr.startswith("cdmpp: a.jsonl has 1 broken lines")
        and "written" not in done.stdout
    )
    assert "Traceback" not in done.stderr
