"""Clients of a make-believe fleet: what is recorded, what dies on the way, and what is said."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdmpp.data.records import read_info, read_records, record_parts
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure.fleet import lane
from cdmpp.measure.fleet.client import FleetClient
from cdmpp.measure.fleet.queue import QUEUE_FILE, JobQueue
from cdmpp.measure.fleet.store import FleetStore
from cdmpp.platform.content import read_parquet
from cdmpp.platform.files import read_lines
from tests.measure.fleet.make_believe import UNFIT, Fleet, Server, settings
from tests.measure.machine import ALL

pytestmark = pytest.mark.tvm


def measure(out: Path, **changes: Any) -> dict[str, Any]:
    return FleetClient(settings(out, **changes), out, patience_s=0.3).run()


def rows(out: Path) -> Counter[tuple[str, str]]:
    """Rows of the files themselves: reading drops copies."""
    found: Counter[tuple[str, str]] = Counter()
    for path in record_parts(out):
        table = read_parquet(path, ["record_id", "device"])
        found.update(zip(*(table.column(name).to_pylist() for name in ("record_id", "device")), strict=True))
    return found


def assert_each_once(out: Path, programs: int = ALL) -> None:
    found = rows(out)
    assert len(found) == programs and set(found.values()) == {1}


def test_several_devices_are_measured_at_once_into_one_folder(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "10.0.0.1:9090"), Server("board", "10.0.0.2:9090"), Server("epyc-genoa", "c:1")]
    found = measure(tmp_path, devices=["board:epyc-9005", "epyc-genoa"])
    assert_each_once(tmp_path, 2 * ALL)
    for device in ("epyc-9005", "epyc-genoa"):
        assert found["devices"][device]["programs"] == ALL
        assert found["devices"][device]["jobs"] == {"queued": 0, "leased": 0, "done": 10, "refused": 0}
    assert found["refused"] == []
    hosts = {device: {r.host for r in read_records(tmp_path, device)} for device in ("epyc-9005", "epyc-genoa")}
    assert hosts == {
        "epyc-9005": {"rpc:board 10.0.0.1 (h, znver5)", "rpc:board 10.0.0.2 (h, znver5)"},
        "epyc-genoa": {"rpc:epyc-genoa c (h, znver5)"},
    }
    for server in fleet.servers:  # both visits to a program are those of one host
        assert set(Counter(server.visits).values()) == {2}
    info = read_info(tmp_path)
    assert info["devices"] == ["epyc-9005", "epyc-genoa"] and info["programs"] == 2 * ALL
    assert info["networks"] == ["a", "b"] and "cpu-v4" in info["protocols"]
    progress = json.loads((tmp_path / ".progress.json").read_text())
    assert progress == {
        "phase": "done", "done": 20, "total": 20,
        "devices": {name: {"done": 10, "total": 10, "refused": 0} for name in ("epyc-9005", "epyc-genoa")},
    }  # fmt: skip


def test_a_rerun_measures_nothing_and_a_larger_plan_only_what_is_new(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [server := Server("board", "a:1")]
    measure(tmp_path, zoo={"a": {}})
    before = len(server.visits)
    measure(tmp_path, zoo={"a": {}})
    assert len(server.visits) == before == ALL
    measure(tmp_path)
    assert len(server.visits) == 2 * before
    measure(tmp_path, schedules_per_task=5)
    assert_each_once(tmp_path, 2 * (3 * 5 + 2))
    assert set(Counter(server.visits).values()) == {2}


def test_without_its_queue_a_folder_goes_on_where_it_was(fleet: Fleet, tmp_path: Path) -> None:
    """The queue may be deleted: what is recorded is not measured again."""
    fleet.servers = [server := Server("board", "a:1")]
    measure(tmp_path, budget=8)
    kept = sum(rows(tmp_path).values())
    (tmp_path / QUEUE_FILE).unlink()
    measure(tmp_path)
    assert_each_once(tmp_path)
    assert 8 <= kept < ALL and set(Counter(server.visits).values()) == {2}


def test_a_budget_ends_at_whole_tasks(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1"), Server("board", "b:1")]
    for budget in (1, 8, 8, 15):
        found = measure(tmp_path, budget=budget)["devices"]["epyc-9005"]["programs"]
        assert budget <= found < budget + 6
    measure(tmp_path)
    assert_each_once(tmp_path)


def test_the_jobs_of_a_server_that_dies_go_to_another(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.servers = [dying := Server("board", "a:1", dies_at=5), other := Server("board", "b:1")]
    found = measure(tmp_path)
    assert_each_once(tmp_path)
    assert found["devices"]["epyc-9005"]["jobs"]["done"] == 10 and found["devices"]["epyc-9005"]["failures"] == {}
    assert "rpc:board a (h, znver5): it went away" in caplog.text and not dying.lives
    unrecorded = set(dying.visits) - {r.schedule for r in read_records(tmp_path) if " a " in r.host}
    assert unrecorded <= set(other.visits)


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_program_that_takes_every_server_along_is_found_out(fleet: Fleet, tmp_path: Path, attempts: int) -> None:
    """It has two servers at most. Only its task is to blame; the others of the lane count as not begun."""
    poison = json.dumps([["a" + "0" * 15, 1], []])
    fleet.servers = [server := Server("board", "a:1")]
    visit, stopped = server.visits, threading.Event()

    class Deadly(list[str]):
        def append(self, schedule: str) -> None:
            visit.append(schedule)
            server.lives = schedule != poison
            if not server.lives:
                threading.Timer(0.6, revive).start()

        def __len__(self) -> int:
            return len(visit)

    def revive() -> None:
        server.lives = not stopped.is_set()

    server.visits = Deadly()
    found = FleetClient(settings(tmp_path, attempts=attempts), tmp_path, patience_s=5.0).run()
    stopped.set()
    assert visit.count(poison) == min(attempts, 2)
    if attempts > 1:
        assert found["refused"] == [] and found["devices"]["epyc-9005"]["failures"] == {"remote crash": 1}
        assert_each_once(tmp_path, ALL - 1)
        return
    assert found["devices"]["epyc-9005"]["jobs"] == {"queued": 0, "leased": 0, "done": 9, "refused": 1}
    (refused,) = found["refused"]
    assert refused == {
        "device": "epyc-9005", "task_id": "a" + "0" * 15, "attempts": 1,
        "reason": "the server a:1 went away while it was measured",
    }  # fmt: skip
    assert_each_once(tmp_path, ALL - 3)
    visit.clear()
    server.visits = visit
    again = measure(tmp_path)
    assert again["refused"] == found["refused"] and visit == []
    assert measure(tmp_path, retry_refused=True)["refused"] == []
    assert_each_once(tmp_path)


def test_a_program_that_breaks_its_session_twice_is_a_failure_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    breaking, slow = json.dumps([["a" + "0" * 15, 1], []]), json.dumps([["b" + "0" * 15, 0], []])
    fleet.servers = [server := Server("board", "a:1", breaks=[breaking])]
    fleet.broken = {slow: {"cause": "too slow", "run_s": 3.0}}
    found = measure(tmp_path)
    assert found["devices"]["epyc-9005"]["failures"] == {"remote crash": 1, "too slow": 1}
    assert server.visits.count(breaking) == 2 and server.visits.count(slow) == 1
    assert found["devices"]["epyc-9005"]["jobs"]["done"] == 10
    assert_each_once(tmp_path, ALL - 2)
    messages = {line["cause"]: line.get("message") for line in read_lines(tmp_path / "failures.jsonl")}
    assert messages["remote crash"] == "2 times: Connection reset by peer"
    measure(tmp_path)
    assert server.visits.count(breaking) == 2


def test_what_does_not_build_or_sample_is_kept_with_its_reason(fleet: Fleet, tmp_path: Path) -> None:
    unbuilt = json.dumps([["a" + "0" * 15, 1], []])
    fleet.servers = [Server("board", "a:1")]
    fleet.broken = {unbuilt: {"cause": "crash"}}
    answer = fleet.answer

    def unsampled(message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "sample" and message["task"]["task_id"].startswith("b"):
            return {"cause": "sample error", "message": "no design space"}
        return answer(message)

    fleet.answer = unsampled  # type: ignore[method-assign]
    found = measure(tmp_path)
    assert found["devices"]["epyc-9005"]["failures"] == {"build crash": 1}
    assert {one["reason"] for one in found["refused"]} == {"sample error: no design space"}
    assert found["devices"]["epyc-9005"]["jobs"] == {"queued": 0, "leased": 0, "done": 5, "refused": 5}


def test_two_clients_share_a_queue_and_measure_nothing_twice(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", f"{name}:1") for name in "abcd"]

    def client(_: int) -> dict[str, Any]:
        return measure(tmp_path, max_servers=2)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(client, range(2)))
    assert_each_once(tmp_path)
    assert set(Counter(schedule for server in fleet.servers for schedule in server.visits).values()) == {2}
    assert JobQueue(tmp_path, 3).counts()["epyc-9005"]["done"] == 10


def test_servers_of_one_key_are_used_up_to_the_limit(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", f"{name}:1") for name in "abcd"]
    measure(tmp_path, max_servers=1)
    assert len([server for server in fleet.servers if server.visits]) >= 1
    most: list[int] = []
    answer = fleet.answer

    def spy(message: dict[str, Any]) -> dict[str, Any]:
        most.append(sum(server.held for server in fleet.servers))
        return answer(message)

    fleet.answer = spy  # type: ignore[method-assign]
    measure(tmp_path / "one", max_servers=1)
    assert max(most) == 1
    measure(tmp_path / "all")
    assert max(most) > 1


def test_what_cannot_be_used_is_named_before_anything_is_done(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1")]
    with pytest.raises(CdmppError, match=r"no server with key 'epyc-genoa' \(keys it knows: board\).*leave it out"):
        measure(tmp_path / "new", devices=["board:epyc-9005", "epyc-genoa"])
    fleet.tracker_lives = False
    with pytest.raises(CdmppError, match="no RPC tracker answers"):
        measure(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flaw", "reason"),
    [
        ({"triple": "aarch64-linux-gnu"}, "it is a machine of aarch64, programs of the device are built for x86_64"),
        ({"runs_references": False}, f"the reference kernel reference_compute does not run there ({UNFIT})"),
    ],
)
def test_a_server_that_does_not_fit_is_left_out_and_the_jobs_go_to_others(
    fleet: Fleet, tmp_path: Path, flaw: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.servers = [unfit := Server("board", "a:1", **flaw)]
    with pytest.raises(CdmppError) as left:
        measure(tmp_path)
    assert "10 jobs are left in" in str(left.value) and f"a:1: {reason}" in str(left.value)
    fleet.servers.append(Server("board", "b:1"))
    measure(tmp_path)
    assert f"the server a:1 (key board) is not used: {reason}" in caplog.text and unfit.visits == []
    assert_each_once(tmp_path)


def test_a_server_that_begins_no_session_is_left_out(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.servers = [Server("board", "a:1", is_dumb=True), Server("board", "b:1")]
    measure(tmp_path)
    assert_each_once(tmp_path)
    fleet.servers = [Server("board", "a:1", is_dumb=True)]
    with pytest.raises(CdmppError, match=r"that fits \(a:1: it does not answer: Connection refused\)"):
        measure(tmp_path / "alone")


def test_a_busy_server_records_nothing_and_is_given_up(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1", grows=0.3)]
    with pytest.raises(
        CdmppError, match=r"jobs are left .*\(a:1: it was busy in 3 windows in a row: visits to the same"
    ):
        measure(tmp_path, batch=12)
    assert rows(tmp_path) == {}
    fleet.servers = [Server("board", "b:1")]
    measure(tmp_path)
    assert_each_once(tmp_path)
    fleet.servers = [Server("board", "a:1", grows=0.3)]
    assert measure(tmp_path / "forced", force=True)["devices"]["epyc-9005"]["flagged_share"] == 1.0


def test_when_all_servers_are_gone_the_jobs_wait_in_the_queue(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [dying := Server("board", "a:1", dies_at=20)]
    with pytest.raises(CdmppError, match="jobs are left in .*start one and run the same command again"):
        measure(tmp_path)
    kept = len(read_records(tmp_path))
    dying.lives, dying.dies_at = True, 10**9
    measure(tmp_path)
    assert 0 < kept < ALL
    assert_each_once(tmp_path)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_tracker_that_is_gone_for_a_moment_costs_nothing(
    fleet: Fleet, tmp_path: Path, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that are held stay; one that breaks meanwhile, or must be renewed, waits for the tracker."""
    monkeypatch.setattr(lane, "RENEW_S", 0.0)
    fleet.servers = [server := Server("board", "a:1")]
    answer = fleet.answer

    def gone(message: dict[str, Any]) -> dict[str, Any]:
        if len(fleet.visits) == 7 and fleet.tracker_lives:
            fleet.tracker_lives = False
            threading.Timer(0.1, lambda: setattr(fleet, "tracker_lives", True)).start()
            server.broken_once = breaks
        return answer(message)

    fleet.answer = gone  # type: ignore[method-assign]
    measure(tmp_path)
    assert_each_once(tmp_path)


def test_a_full_disk_ends_the_client_and_the_rest_is_measured_later(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.servers = [Server("board", "a:1")]
    keep, calls = FleetStore.keep, []

    def full(self: FleetStore, *given: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise DataError("cannot write records: no space left on device. Free some space")
        keep(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(FleetStore, "keep", full)
        with pytest.raises(DataError, match="no space left"):
            measure(tmp_path)
    assert JobQueue(tmp_path, 3).counts()["epyc-9005"]["leased"] == 0
    measure(tmp_path)
    assert_each_once(tmp_path)


def test_ctrl_c_puts_the_jobs_back(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.servers = [Server("board", "a:1")]
    counts = JobQueue.counts

    def interrupted(self: JobQueue) -> Any:
        if threading.current_thread() is threading.main_thread() and len(fleet.visits) > 8:
            raise KeyboardInterrupt
        return counts(self)

    with monkeypatch.context() as patch:
        patch.setattr(JobQueue, "counts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path)
    left = JobQueue(tmp_path, 3).counts()["epyc-9005"]
    assert left["leased"] == left["refused"] == 0 and left["queued"] > 0
    measure(tmp_path)
    assert_each_once(tmp_path)


def test_the_time_limit_begins_no_job_but_finishes_what_is_begun(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1")]
    answer = fleet.answer
    client = FleetClient(settings(tmp_path, time_limit_min=1e-3), tmp_path, patience_s=0.3)

    def slowly(message: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.02)
        return answer(message)

    fleet.answer = slowly  # type: ignore[method-assign]
    report = client.run()["devices"]["epyc-9005"]
    assert report["jobs"]["queued"] > 0 and report["jobs"]["leased"] == 0 and report["programs"] < ALL
    assert all(record.extra["samples_per_visit"] == "10,10" for record in read_records(tmp_path))


def test_the_very_schedules_of_another_device_are_measured(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1"), Server("epyc-genoa", "b:1")]
    measure(tmp_path / "first", budget=8)
    asked = fleet.samples_asked
    measure(tmp_path / "second", devices=["epyc-genoa"], schedules_from=tmp_path / "first", schedules_per_task=16)
    first, second = (read_records(tmp_path / name) for name in ("first", "second"))
    assert {(r.task_id, r.schedule) for r in first} == {(r.task_id, r.schedule) for r in second}
    assert fleet.samples_asked == asked and not {r.record_id for r in first} & {r.record_id for r in second}


def test_another_kind_of_data_set_is_not_written_into(fleet: Fleet, tmp_path: Path) -> None:
    fleet.servers = [Server("board", "a:1")]
    (tmp_path / "dataset.json").write_text('{"schema_version": 1, "features": "library"}')
    with pytest.raises(DataError, match="features=library, these have features=cdmpp"):
        measure(tmp_path)
