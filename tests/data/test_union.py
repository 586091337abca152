"""Folders of several hosts put together: a union of sets, and what two hosts that disagree make of it."""

from __future__ import annotations

import dataclasses
import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp import cli
from cdmpp.data import union
from cdmpp.data.agreement import TOLERANCE, compared, conflicts
from cdmpp.data.records import append_records, read_info, read_records, read_rows, read_tasks, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.union import DataUnion
from cdmpp.errors import DataError
from cdmpp.platform.files import FAILURES_FILE, append_lines
from cdmpp.programs.task import Task


def record(program: int, latency_s: float = 1e-3, host: str = "a", spread: float = 0.01, **changes: object) -> Record:
    values = {
        "record_id": f"{program:016x}", "task_id": f"{program // 2:016x}", "device": "epyc-9005", "target": "{}",
        "schedule": f"[[{program}],[]]", "latency_samples_s": (latency_s, 1.1 * latency_s), "latency_s": latency_s,
        "latency_min_s": latency_s, "latency_median_s": 1.05 * latency_s, "spread": spread, "host": host,
        "protocol": "cpu-v4", "measured_at": "2026-01-01T00:00:00+00:00",
        "extra": {"samples_per_visit": "1,1", "quiet_visits": "1,1"},
    }  # fmt: skip
    return Record(**{**values, **changes})  # type: ignore[arg-type]


def write(folder: Path, records: list[Record], counts: dict[str, int] | None = None, **info: object) -> Path:
    tasks = [
        Task(key, f"op{key[-1]}", "matmul", f"text {key}", 1.0, 1.0, counts or {"net": 1}, "torch")
        for key in sorted({one.task_id for one in records})
    ]
    write_info(folder, **{"name": folder.name, "protocols": {"cpu-v4": "as it is"}, "networks": ["net"], **info})
    write_tasks(folder, tasks)
    append_records(folder, records)
    return folder


def merged(out: Path, *folders: Path) -> Path:
    DataUnion.of(folders).resolved(TOLERANCE).write(out)
    return out


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hosts(tmp_path: Path) -> list[Path]:
    """Three hosts; the first two share two programs, one of which is the same row, the last has another network."""
    shared = record(3, host="a")
    folders = [
        write(tmp_path / "a", [record(1), record(2), shared]),
        write(tmp_path / "b", [shared, record(2, 1.02e-3, "b"), record(4, host="b")]),
        write(
            tmp_path / "c", [record(5, host="c"), record(2, 1.01e-3, "c")], {"net": 2, "other": 1}, networks=["other"]
        ),
    ]
    append_lines(folders[0] / FAILURES_FILE, [{"id": "x", "task_id": "t", "device": "epyc-9005", "cause": "crash"}])
    append_lines(folders[2] / FAILURES_FILE, [{"task_id": "t", "id": "x", "cause": "crash", "device": "epyc-9005"}])
    return folders


def test_neither_order_nor_steps_nor_repeats_change_a_bit(hosts: list[Path], tmp_path: Path) -> None:
    a, b, c = hosts
    expected = content(merged(tmp_path / "at-once" / "all", a, b, c))
    assert set(expected) == {"dataset.json", "tasks.parquet", "records/part-00000.parquet", FAILURES_FILE}
    ways = [[a, c, b], [c, b, a]]
    for number, way in enumerate(ways):
        assert content(merged(tmp_path / f"order{number}" / "all", *way)) == expected
    for number, (one, two, three) in enumerate(permutations(hosts)):  # in two steps
        pair = merged(tmp_path / f"pair{number}", one, two)
        assert content(merged(tmp_path / f"steps{number}" / "all", pair, three)) == expected
        assert (
            content(merged(tmp_path / f"again{number}" / "all", pair, one, three, pair / ".." / pair.name)) == expected
        )
    once = merged(tmp_path / "once" / "all", tmp_path / "at-once" / "all")
    assert content(once) == expected


def test_what_is_merged_is_all_there_is(hosts: list[Path], tmp_path: Path) -> None:
    out = merged(tmp_path / "out", *hosts)
    rows = read_rows(out)
    assert len(rows) == 7 and {one.record_id[-1] for one in rows} == set("12345")
    assert sorted(one.host for one in rows if one.record_id[-1] == "2") == ["a", "b", "c"]
    assert {key[-1]: task.networks for key, task in read_tasks(out).items()} == {
        "0": {"net": 1}, "1": {"net": 2, "other": 1}, "2": {"net": 2, "other": 1},
    }  # fmt: skip
    info = read_info(out)
    assert info["hosts"] == ["a", "b", "c"] and info["networks"] == ["net", "other"] and info["programs"] == 5
    assert len((out / FAILURES_FILE).read_text().splitlines()) == 1
    # Hosts that agree are one record to those who read: the fastest, with the samples of all.
    (two,) = (one for one in read_records(out) if one.record_id[-1] == "2")
    assert two.latency_s == 1e-3 and len(two.latency_samples_s) == 6 and two.n_merged == 3


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1e-3, 1.005e-3]), st.sampled_from("ab")), max_size=5),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_a_union_of_any_rows_is_commutative_associative_and_idempotent(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, float, str]]]
) -> None:
    place = tmp_path_factory.mktemp("union")
    folders = [write(place / f"in{n}", [record(*one) for one in part]) for n, part in enumerate(parts)]
    expected = content(merged(place / "x" / "all", *folders))
    assert content(merged(place / "y" / "all", *reversed(folders))) == expected
    step = folders[0]
    for number, folder in enumerate(folders):
        step = merged(place / f"step{number}" / "all", step, folder)
    assert content(step) == expected
    assert len(read_rows(step)) == len({one for part in parts for one in part})


@pytest.mark.parametrize(
    ("a", "b", "agree"),
    [
        ((1.00e-3, 0.01), (1.04e-3, 0.01), True),  # 3 * sqrt(2) * 1 % = 4.24 %
        ((1.00e-3, 0.01), (1.05e-3, 0.01), False),
        ((1.00e-3, 0.0), (1.029e-3, 0.0), True),  # 1 % at least
        ((1.00e-3, 0.0), (1.031e-3, 0.0), False),
        ((1.00e-3, 0.03), (1.14e-3, 0.04), True),  # 3 * 5 %
        ((1.00e-3, 0.03), (1.16e-3, 0.04), False),
    ],
)
def test_two_hosts_agree_within_the_noise_of_their_repeats(
    a: tuple[float, float], b: tuple[float, float], agree: bool
) -> None:
    one, other = record(1, a[0], "a", a[1]), record(1, b[0], "b", b[1])
    for pair in ((one, other), (other, one)):
        found = compared(*pair)
        assert (found is None) == agree
        if found is not None:
            assert (found.first, found.second) == (one, other)
            assert found.difference == pytest.approx(b[0] / a[0] - 1)
            assert found.allowed == pytest.approx(3 * max((a[1] ** 2 + b[1] ** 2) ** 0.5, 0.01))
    assert compared(one, other, 1000) is None
    assert (compared(one, other, 0) is None) is False


def test_labels_of_different_kinds_are_compared_by_their_medians() -> None:
    own, imported = record(1, 1e-3, "a"), record(1, 1.2e-3, "b", statistic="median", latency_median_s=1.06e-3)
    assert compared(own, imported) is None  # 1.05 and 1.06 ms
    assert compared(own, dataclasses.replace(imported, latency_median_s=1.2e-3)) is not None


def test_only_measurements_of_one_program_on_one_device_are_compared() -> None:
    assert conflicts([record(1), record(2, 9e-3), record(1, 9e-3, device="epyc-genoa")]) == []
    three = [record(1, 1e-3, "a"), record(1, 1.02e-3, "b"), record(1, 1.08e-3, "c"), record(1, 1e-3, "a")]
    assert [(one.first.host, one.second.host) for one in conflicts(three)] == [("a", "c"), ("b", "c")]


def test_parts_hold_portions_of_the_rows_and_copies_in_one_folder_count_once(
    hosts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_rows(merged(tmp_path / "whole", *hosts))
    monkeypatch.setattr(union, "_PART_ROWS", 3)
    append_records(hosts[0], read_rows(hosts[0]))
    parts = merged(tmp_path / "parts", *hosts)
    assert len(list(parts.glob("records/part-*.parquet"))) == -(-len(whole) // 3) == 3
    assert read_rows(parts) == whole
    programs = len({(one.device, one.record_id) for one in whole})
    assert read_info(parts)["programs"] == read_info(tmp_path / "whole")["programs"] == programs
    row = next(DataUnion.of(hosts).rows)
    assert row.folders == (hosts[0],) == DataUnion.of(hosts).folders_of(row.record)
    with pytest.raises(DataError, match="no folder holds this row"):
        DataUnion.of(hosts[1:]).folders_of(row.record)


def test_rows_wait_in_the_cache_and_leave_nothing_there(
    hosts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    assert len(list(DataUnion.of(hosts).rows)) == 7
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="CDMPP_CACHE"):
        DataUnion.of(hosts)


@pytest.fixture
def disagreeing(tmp_path: Path) -> list[Path]:
    return [
        write(tmp_path / "a", [record(1, host="here"), record(2, 2e-3, "here")]),
        write(tmp_path / "b", [record(1, 1.3e-3, "there"), record(2, 2.01e-3, "there"), record(3, host="there")]),
    ]


def test_a_conflict_names_both_values_and_hosts_and_nothing_is_written(
    disagreeing: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["data", "merge", *map(str, disagreeing), "--out", str(out)]
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    what = "program 0000000000000001 of task 0000000000000000 on epyc-9005"
    assert f"measurements disagree in 1 pairs: {what}: 1.000 ms by here" in shown.err
    assert "and 1.300 ms by there, 30.0 % apart where their repeats allow 4.2 %. Nothing was written" in shown.err
    assert "--keep HOST" in shown.err and not out.exists()
    table = " ".join(shown.out.split())
    assert "Measurements that disagree" in table and "2 measured more than once: 1 agree, 1 do not" in table
    assert cli.main([*words, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    (conflict,) = answer["conflicts"]
    assert (conflict["first_s"], conflict["second_s"]) == (1e-3, 1.3e-3) and answer["written"] is None
    assert conflict["first_host"] == f"here in {disagreeing[0]}" and conflict["task"] == "op0"


def test_a_comparison_ends_with_a_status_that_says_whether_hosts_agree(
    disagreeing: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "merge", *map(str, disagreeing), "--json"]
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["conflicts"]) == 1 and "measurements disagree in 1 pairs" in shown.err
    assert cli.main([*words, "--tolerance", "30"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["conflicts"] == [] and shown.err == ""


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        (["--keep", "here"], {"1": ["here"], "2": ["here", "there"], "3": ["there"]}),
        (["--keep", "ther"], {"1": ["there"], "2": ["here", "there"], "3": ["there"]}),
        (["--keep", "nobody", "--keep", "there"], {"1": ["there"], "2": ["here", "there"], "3": ["there"]}),
        (["--drop-conflicts"], {"2": ["here", "there"], "3": ["there"]}),
        (["--tolerance", "30"], {"1": ["here", "there"], "2": ["here", "there"], "3": ["there"]}),
    ],
)
def test_a_conflict_is_settled_by_choice(
    disagreeing: list[Path], tmp_path: Path, choice: list[str], kept: dict[str, list[str]]
) -> None:
    words = ["data", "merge", *map(str, disagreeing), "--out", str(tmp_path / "out"), *choice]
    assert cli.main(words) == 0
    found: dict[str, list[str]] = {}
    for row in read_rows(tmp_path / "out"):
        found.setdefault(row.record_id[-1], []).append(row.host)
    assert found == kept


def test_a_folder_may_be_chosen_where_hosts_have_one_name(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [record(1, host="EPYC, 2 processors")])
    b = write(tmp_path / "b", [record(1, 1.3e-3, "EPYC, 2 processors")])
    both = DataUnion.of([a, b])
    with pytest.raises(DataError, match="--keep EPYC does not settle them"):
        both.resolved(TOLERANCE, ["EPYC"])
    assert [row.record.latency_s for row in both.resolved(TOLERANCE, [str(b)]).rows] == [1.3e-3]


def test_reading_a_folder_in_which_hosts_disagree_is_not_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "a", [record(1, host="a"), record(1, 1.01e-3, "b")])
    read_records(folder)
    assert caplog.text == ""
    append_records(folder, [record(1, 1.5e-3, "c")])
    read_records(folder)
    assert "2 pairs disagree, first program 0000000000000001" in caplog.text
    assert f"`cdmpp data merge {folder} --out FOLDER`" in caplog.text


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [record(1)])
    with pytest.raises(DataError, match="two values of schedule: an id stands for one program"):
        DataUnion.of([a, write(tmp_path / "b", [record(1, schedule="[[9],[]]")])])
    with pytest.raises(DataError, match="features=cdmpp, .*features=library"):
        DataUnion.of([a, write(tmp_path / "c", [record(2)], features="library")])
    for number, (info, message) in enumerate(
        [
            ({"features": "ansor164"}, "features=ansor164, which lie beside"),
            ({"complete": False}, "did not end: run the"),
        ]
    ):
        with pytest.raises(DataError, match=message):
            DataUnion.of([write(tmp_path / f"kind{number}", [record(1)], **info)])
    other = write(tmp_path / "d", [record(1, host="d")])
    write_tasks(tmp_path / "e", [dataclasses.replace(task, workload="other") for task in read_tasks(other).values()])
    (tmp_path / "e" / "tasks.parquet").replace(other / "tasks.parquet")
    with pytest.raises(DataError, match="task 0000000000000000 has another text in .*tasks_from"):
        DataUnion.of([a, other])


def test_places_that_cannot_be_written_or_read_are_named(hosts: list[Path], tmp_path: Path) -> None:
    united = DataUnion.of(hosts)
    with pytest.raises(DataError, match="is there already and not empty"):
        united.write(hosts[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file"):
        united.write(tmp_path / "file" / "out")
    (tmp_path / "empty").mkdir()
    united.write(tmp_path / "empty")
    assert len(read_rows(tmp_path / "empty")) == 7
    with pytest.raises(DataError, match=r"no such file: .*nothing/dataset\.json"):
        DataUnion.of([tmp_path / "nothing"])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
