"""The loop with a make-believe machine: what is recorded, what a kill costs, what a rerun does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.publish.card import card
from cdmpp.data.records import append_records, read_info, read_records
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure import collector as module
from cdmpp.measure import repeats, revisions, window
from cdmpp.measure.collector import Collector
from cdmpp.measure.settings import CollectSettings
from cdmpp.programs.task import Task


class Machine:
    """Answers requests like a worker; ``broken`` and ``noise`` go by schedule, ``kill_after`` counts visits."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.samples_asked = 0
        self.broken: dict[str, dict[str, Any]] = {}
        self.kill_after = 10**9
        self.noise: dict[str, list[float]] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "import":
            return {"tasks": [dataclasses.asdict(make_task(message["network"], i)) for i in range(5)]}
        if message["op"] == "sample":
            self.samples_asked += 1
            n = message["n"] if message["task"]["op_class"] == "conv2d" else 1
            texts = [json.dumps([[message["task"]["task_id"], i], []]) for i in range(n)]
            return {"schedules": texts, "arguments": [[[4], "float32"]]}
        if message["op"] == "build":
            if message["schedule"] in self.broken and self.broken[message["schedule"]]["cause"] == "crash":
                return dict(self.broken[message["schedule"]])
            Path(message["path"]).write_text(message["schedule"])
            return {}
        schedule = Path(message["path"]).read_text()
        self.visits.append(schedule)
        if len(self.visits) > self.kill_after:
            raise KeyboardInterrupt
        if schedule in self.broken:
            return dict(self.broken[schedule])
        factor = self.noise.get(schedule, [1.0])
        return {"samples": [1e-3 * (factor.pop(0) if len(factor) > 1 else factor[0])] * 10}


class FakeWorker:
    machine: Machine

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self.cores = tuple(cores)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def request(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        return self.machine.answer(message)


class CalmSentinels:
    def __init__(self, worker: Any, log: Path, timing: Any) -> None: ...

    def build(self, *arguments: Any) -> None: ...

    def take(self) -> dict[str, float]:
        return {}

    def quiet(self, run_s: dict[str, float]) -> bool:
        return True

    def wait_until_quiet(self) -> bool:
        return True


def make_task(network: str, index: int) -> Task:
    kind = "conv2d" if index % 2 == 0 else "elementwise"
    return Task(f"{network}{index:015d}", f"{kind}{index}", kind, "text", 1e6, 1e4, {network: 1}, "torch")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    built = Machine()
    FakeWorker.machine = built

    def run_many(workers: Any, messages: list[Any], limit_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, message in enumerate(messages):
            yield index, built.answer(message)

    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(module, "Sentinels", CalmSentinels)
    for place in (module, window):
        monkeypatch.setattr(place, "run_many", run_many)
    return built


def settings(**changes: Any) -> CollectSettings:
    base = CollectSettings(
        device="xeon-icelake",
        target={"kind": "llvm"},
        zoo={"a": {}, "b": {}},
        schedules_per_task=3,
        batch=6,
        min_separation_s=0.0,
        show_progress=False,
    )
    return dataclasses.replace(base, **changes)


# Two networks of 3 conv2d tasks with 3 schedules and 2 elementwise tasks with 1.
ALL = 2 * (3 * 3 + 2)


def test_every_program_is_visited_twice_and_recorded_once(machine: Machine, tmp_path: Path) -> None:
    found = Collector(settings(), tmp_path).run()
    records = read_records(tmp_path)
    assert found["programs"] == len(records) == len({r.record_id for r in records}) == ALL
    assert found["tasks"] == 10 and found["failures"] == {} and found["flagged_share"] == 0
    assert len(machine.visits) == 2 * ALL
    assert {r.extra["samples_per_visit"] for r in records} == {"10,10"}
    assert read_info(tmp_path)["programs"] == ALL
    assert json.loads((tmp_path / ".progress.json").read_text())["phase"] == "done"


def test_visits_to_one_program_lie_in_different_windows(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(), tmp_path).run()
    first = [machine.visits.index(s) for s in dict.fromkeys(machine.visits)]
    second = [len(machine.visits) - 1 - machine.visits[::-1].index(s) for s in dict.fromkeys(machine.visits)]
    assert min(b - a for a, b in zip(first, second, strict=True)) >= 5


def test_a_rerun_measures_nothing_again(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(), tmp_path).run()
    before = len(machine.visits)
    assert Collector(settings(), tmp_path).run()["programs"] == ALL
    assert len(machine.visits) == before


def test_a_kill_in_the_middle_costs_a_batch_and_doubles_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.kill_after = 25
    with pytest.raises(KeyboardInterrupt):
        Collector(settings(), tmp_path).run()
    kept = len(read_records(tmp_path))
    assert 0 < kept < ALL
    machine.kill_after = 10**9
    Collector(settings(), tmp_path).run()
    ids = [r.record_id for r in read_records(tmp_path)]
    assert len(ids) == len(set(ids)) == ALL


def test_a_second_collection_into_the_folder_is_refused(machine: Machine, tmp_path: Path) -> None:
    """Another thread is another writer, as another process would be; what it knew before it waited is stale."""
    second, refused = Collector(settings(), tmp_path), []
    answer = machine.answer

    def meanwhile(message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "time" and not refused:
            with ThreadPoolExecutor(1) as pool:
                refused.append(pool.submit(second.run).exception())
        return answer(message)

    machine.answer = meanwhile  # type: ignore[method-assign]
    Collector(settings(), tmp_path).run()
    assert isinstance(refused[0], CdmppError) and "being written by process" in str(refused[0])
    visited = len(machine.visits)
    assert second.run()["programs"] == ALL and len(machine.visits) == visited == 2 * ALL


def test_budget_ends_the_run_and_a_larger_one_continues(machine: Machine, tmp_path: Path) -> None:
    assert Collector(settings(budget=8), tmp_path).run()["programs"] == 8
    assert Collector(settings(budget=13), tmp_path).run()["programs"] == 13
    assert Collector(settings(), tmp_path).run()["programs"] == ALL


def test_failures_are_counted_by_cause_and_not_tried_again(machine: Machine, tmp_path: Path) -> None:
    slow, crash = json.dumps([["a" + "0" * 15, 0], []]), json.dumps([["b" + "0" * 15, 1], []])
    machine.broken = {slow: {"cause": "too slow", "run_s": 3.0}, crash: {"cause": "crash"}}
    found = Collector(settings(), tmp_path).run()
    assert found["programs"] == ALL - 2
    assert found["failures"] == {"too slow": 1, "build crash": 1}
    tried = machine.visits.count(slow)
    Collector(settings(), tmp_path).run()
    assert machine.visits.count(slow) == tried == 1


def test_disagreeing_visits_get_a_third(machine: Machine, tmp_path: Path) -> None:
    helped, lost = json.dumps([["a" + "0" * 15, 0], []]), json.dumps([["a" + "0" * 15, 1], []])
    machine.noise = {helped: [1.3, 1.0, 1.01], lost: [1.0, 1.2, 1.5]}
    Collector(settings(), tmp_path).run()
    by_schedule = {r.schedule: r for r in read_records(tmp_path)}
    assert by_schedule[helped].extra["samples_per_visit"] == "10,10,10"
    assert by_schedule[helped].latency_s == 1e-3 and not by_schedule[helped].flagged
    assert by_schedule[lost].flagged and by_schedule[lost].spread == pytest.approx(0.2)
    assert machine.visits.count(helped) == machine.visits.count(lost) == 3


def test_phases_are_announced(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    phase_file = tmp_path / "phase"
    answer = machine.answer

    def spy(message: dict[str, Any]) -> dict[str, Any]:
        seen.append(message["op"] + "/" + phase_file.read_text())
        return answer(message)

    monkeypatch.setattr(machine, "answer", spy)
    Collector(settings(phase_file=phase_file), tmp_path / "set").run()
    assert set(seen) == {"import/sample", "sample/sample", "build/build", "time/measure"}
    assert phase_file.read_text() == "done"


def test_time_limit_starts_no_new_batch_but_finishes_what_is_begun(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """One second a visit."""

        sleep = staticmethod(lambda seconds: None)
        monotonic = staticmethod(lambda: float(len(machine.visits)))

    for place in (module, window):
        monkeypatch.setattr(place, "time", Clock)
    Collector(settings(time_limit_s=8.0), tmp_path).run()
    records = read_records(tmp_path)
    assert 0 < len(records) < ALL
    assert all(r.extra["samples_per_visit"] == "10,10" for r in records)


def test_another_device_measures_the_tasks_or_the_very_schedules_of_the_first(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "arguments_of", lambda workload: [[[4], "float32"]])
    Collector(settings(budget=12), tmp_path / "first").run()
    first, asked = read_records(tmp_path / "first"), machine.samples_asked
    other = settings(device="xeon-icelake-avx2", schedules_from=tmp_path / "first")
    Collector(other, tmp_path / "pairs").run()
    pairs = read_records(tmp_path / "pairs", "xeon-icelake-avx2")
    assert machine.samples_asked == asked, "nothing is sampled"
    assert {(r.task_id, r.schedule) for r in pairs} == {(r.task_id, r.schedule) for r in first}
    assert not {r.record_id for r in pairs} & {r.record_id for r in first}
    Collector(settings(tasks_from=tmp_path / "first"), tmp_path / "shared").run()
    shared = read_records(tmp_path / "shared")
    assert {r.task_id for r in shared} == {r.task_id for r in first} and machine.samples_asked > asked


def test_repeats_measure_recorded_programs_again_and_resume(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "arguments_of", lambda workload: [[[4], "float32"]])
    Collector(settings(), tmp_path).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    with pytest.raises(DataError, match="an hour old"):
        repeats.Repeater(settings(), tmp_path, 5).run()
    monkeypatch.setattr(repeats, "MIN_AGE_S", -1.0)
    slower = json.dumps([[read_records(tmp_path)[0].task_id, 0], []])
    machine.noise = {slower: [1.1]}
    machine.kill_after = len(machine.visits) + 15
    with pytest.raises(KeyboardInterrupt):
        repeats.Repeater(settings(), tmp_path, ALL).run()
    machine.kill_after = 10**9
    found = repeats.Repeater(settings(), tmp_path, ALL).run()
    entries = [json.loads(line) for line in (tmp_path / "repeats.jsonl").read_text().splitlines()]
    assert found["programs"] == len(entries) == len({entry["record_id"] for entry in entries}) == ALL
    assert found["deviation_mean"] == pytest.approx(0.1 / ALL) and found["deviation_median"] == 0
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert "programs measured again" in card(tmp_path)


def test_doubtful_labels_are_visited_again_and_merged(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (repeats, revisions):
        monkeypatch.setattr(place, "arguments_of", lambda workload: [[[4], "float32"]])
    Collector(settings(budget=12), tmp_path).run()
    with pytest.raises(DataError, match="nothing to revise"):
        revisions.Reviser(settings(), tmp_path, 5).run()
    noisy, worse, calm = read_records(tmp_path)[:3]
    rows = read_records(tmp_path)
    for path in (tmp_path / "records").glob("*.parquet"):
        path.unlink()
    spoiled = {
        noisy.record_id: spread_out(noisy, (1.2e-3, 1.5e-3, 2e-3)),
        worse.record_id: spread_out(worse, (0.9e-3, 2e-3, 3e-3)),
    }
    append_records(tmp_path, [spoiled.get(r.record_id, r) for r in rows[:2]])
    append_records(tmp_path, rows[2:])
    visited = len(machine.visits)
    revisions.Reviser(settings(), tmp_path, 1).run()
    assert set(machine.visits[visited:]) - sentinel_names(machine) == {worse.schedule}, "the widest spread comes first"
    revisions.Reviser(settings(), tmp_path, 5).run()
    after = {r.record_id: r for r in read_records(tmp_path)}
    assert len(after) == 12 and after[calm.record_id] == calm
    settled, kept = after[noisy.record_id], after[worse.record_id]
    assert settled.latency_s == 1e-3 and not settled.flagged and settled.extra["revised_by"] == noisy.protocol
    assert settled.extra["samples_per_visit"] == "10,10,10,10,10" and len(settled.latency_samples_s) == 50
    # The fastest visit of all is an old one: it stays the label, and that no other agrees stays said.
    assert kept.latency_s == 0.9e-3 and kept.spread == pytest.approx(1 / 9) and kept.flagged


def test_labels_taken_with_other_inputs_are_replaced(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Collector(settings(budget=4), tmp_path).run()
    records = read_records(tmp_path)
    for path in (tmp_path / "records").glob("*.parquet"):
        path.unlink()
    old = [dataclasses.replace(r, protocol="cpu-v2", latency_s=1e-9, latency_min_s=1e-9) for r in records]
    append_records(tmp_path, old)
    for place in (repeats, revisions):
        monkeypatch.setattr(place, "arguments_of", lambda workload: [[[4], "int8"]])
    revisions.Reviser(settings(), tmp_path, 9).run()
    assert {(r.record_id, r.latency_s, r.protocol) for r in read_records(tmp_path)} == {
        (r.record_id, 1e-3, r.protocol) for r in records
    }


def spread_out(record, minima: tuple[float, ...]):
    """The record as three visits would have left it that did not agree."""
    samples = tuple(m for m in minima for _ in range(10))
    extra = {**record.extra, "samples_per_visit": "10,10,10", "quiet_visits": "1,1,1"}
    spread = sorted(minima)[1] / min(minima) - 1
    return dataclasses.replace(
        record, latency_samples_s=samples, latency_s=min(minima), spread=spread, flagged=True, extra=extra
    )


def sentinel_names(machine: Machine) -> set[str]:
    """What the make-believe machine was asked to run besides programs of a data set."""
    return {name for name in machine.visits if not name.startswith("[[")}
