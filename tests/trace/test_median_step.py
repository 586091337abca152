"""The median step: waiting split from the wire, clocks aligned, what profiling costs taken off, folders checked."""

from __future__ import annotations

import json

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.gaps import without_gaps
from cdmpp.steps.transforms.links import scale_bandwidth, without_wire_time
from cdmpp.steps.transforms.straggler import straggler
from cdmpp.trace.diagnosis import diagnose, servers_of
from cdmpp.trace.folder import read_job, read_traces, traced_job
from cdmpp.trace.graph_file import graph_from_dict, graph_to_dict
from tests.trace.small_traces import ITEMS, cpu_step, event, gpu_step, shaped, write, write_job

US = 1e6


def test_waiting_is_no_wire_time(tmp_path):
    job = read_job(write_job(tmp_path, late=50.0))
    first, second = job.exchanges
    assert first.wire_s * US == pytest.approx(50) and second.wire_s * US == pytest.approx(60)
    assert job.measured.waits_s is not None
    assert {rank: seconds * US for rank, seconds in job.measured.waits_s.items()} == pytest.approx(
        {0: 50, 1: 0}, abs=1e-6
    )
    assert straggler(job) == 1
    assert {"idle gaps", "exposed communication"} < {cause.name for cause in diagnose(job)}
    slow = next(cause for cause in diagnose(job) if cause.name == "straggler rank 1")
    assert slow.seconds * US == pytest.approx(50) and "AddmmBackward0" in slow.spans[0]


def test_gaps_start_where_waiting_ends(tmp_path):
    job = read_job(write_job(tmp_path))
    rank = job.ranks[0]
    copy = rank.ops[10]
    assert job.waits(0)[10] == (1,) and copy.delay_s * US == pytest.approx(10)
    assert job.waits(0)[9] == (0,)
    assert rank.ops[11].delay_s * US == pytest.approx(5)
    assert rank.tail_s * US == pytest.approx(500)


def test_a_replay_takes_as_long_as_the_traced_step(tmp_path):
    for late in (0.0, 50.0):
        job = read_job(write_job(tmp_path / str(late), late))
        assert replay(job).step_s == pytest.approx(job.measured.step_s, rel=0.01)


@pytest.mark.parametrize("shift", [3e5, -2e9])
def test_another_clock_changes_nothing(tmp_path, shift):
    same, shifted = read_job(write_job(tmp_path / "a")), read_job(write_job(tmp_path / "b", shift=shift))
    for one, other in zip(same.exchanges, shifted.exchanges, strict=True):
        assert other.wire_s == pytest.approx(one.wire_s, abs=120e-6)  # within what order allows
    assert [r.busy_s for r in shifted.ranks] == pytest.approx([r.busy_s for r in same.ranks], rel=1e-3)


def test_gpu_traces_take_the_same_way(tmp_path):
    job = read_job(write_job(tmp_path, late=40.0, step=gpu_step, backend="nccl"))
    (exchange,) = job.exchanges
    assert exchange.wire_s * US == pytest.approx(330 - 265)
    place = next(place for place, op in enumerate(job.ranks[0].ops) if op.name == "sgd")
    update = job.ranks[0].ops[place]
    assert job.waits(0)[place] == (0,) and update.delay_s * US == pytest.approx(5)
    assert replay(job).step_s == pytest.approx(job.measured.step_s, rel=0.01)


def test_a_server_takes_messages(tmp_path):
    """The worker pushes from 100 to 200, the server adds until 250 and sends at 255; the worker has it at 300."""

    def message(kind: str, peer: int, called: float, begin: float, end: float) -> list[dict]:
        told = {"Concrete Inputs": ["", "", str(peer), "0"]}
        return [event(f"c10d::{kind}", called, begin, **told), event(f"gloo:{kind[:4]}", begin, end, **shaped(ITEMS))]

    mark = event("ProfilerStep#3", 0, 500, cat="user_annotation")
    server = [
        mark,
        *message("recv_", 1, 10, 12, 200),
        event("aten::add_", 205, 250),
        *message("send", 1, 255, 256, 258),
    ]
    worker = [mark, event("aten::linear", 0, 100), *message("send", 0, 100, 105, 310)]
    worker += [*message("recv_", 0, 110, 112, 300), event("aten::copy_", 305, 500)]
    for rank, events in enumerate((server, worker)):
        write(tmp_path, rank, events)
    job = read_job(tmp_path)
    told = [(one.group, round(one.wire_s * US)) for one in job.exchanges]
    assert sorted(told) == [("0->1", 45), ("1->0", 100)]
    assert servers_of(job) == ()  # nobody has gradients in this trace
    assert set(job.waits(0)) == {1}
    assert replay(job).step_s == pytest.approx(job.measured.step_s, rel=0.01)


def test_a_gather_that_stands_still_is_waited_for_at_once(tmp_path):
    """A prefetched unit is copied out one op later, but gloo returns when all is there: no gap of the host."""

    def step(number: int) -> list[dict]:
        begin = 1000.0 * number
        found = [
            event(f"ProfilerStep#{number}", 0, 900, cat="user_annotation"),
            event("FSDP::all_gather (1)", 100, 310, cat="user_annotation"),
            event("c10d::_allgather_base_", 105, 110, **shaped(ITEMS)),
            event("gloo:all_gather", 110, 300, 2, "user_annotation", **shaped(ITEMS)),
            event("aten::mm", 315, 600),
            event("FSDP::all_gather_copy_out (1)", 650, 660, cat="user_annotation"),
            event("aten::copy_", 652, 660),
        ]
        return [{**one, "ts": one["ts"] + begin} for one in found]

    for rank in (0, 1):
        write(tmp_path, rank, step(3) + step(4))
    job = read_job(tmp_path)
    product = job.ranks[0].ops[1]
    assert (product.name, job.waits(0)) == ("aten::mm", {1: (0,)}) and product.delay_s * US == pytest.approx(15)
    assert without_gaps(job).ranks[0].ops[1].delay_s == 0


def test_a_message_that_fills_a_buffer_holds_its_sender(tmp_path):
    """The call ends when a third of the message has left: on a link of half the rate it takes twice as long."""

    def message(kind: str, peer: int, called: float, begin: float, end: float, returned: float) -> list[dict]:
        told = {"Concrete Inputs": ["", "", str(peer), "0"]}
        return [
            event(f"c10d::{kind}", called, returned, **told),
            event(f"gloo:{kind[:4]}", begin, end, **shaped(ITEMS)),
        ]

    mark = event("ProfilerStep#3", 0, 1000, cat="user_annotation")
    sender = [mark, event("aten::linear", 0, 100), *message("send", 1, 100, 100, 200, 202), event("aten::mm", 205, 900)]
    receiver = [mark, *message("recv_", 0, 10, 12, 400, 402), event("aten::copy_", 405, 500)]
    for rank, events in enumerate((sender, receiver)):
        write(tmp_path, rank, events)
    job = read_job(tmp_path)
    product = job.ranks[0].ops[2]
    assert (product.name, job.waits(0), job.exchanges[0].blocks) == ("aten::mm", {}, {0: (2,)})
    assert product.delay_s * US == pytest.approx(105)
    assert scale_bandwidth(job, 0.5).ranks[0].ops[2].delay_s == pytest.approx(2 * product.delay_s)
    assert without_gaps(job).ranks[0].ops[2].delay_s == product.delay_s
    assert without_wire_time(job).ranks[0].ops[2].delay_s == 0
    assert graph_from_dict(graph_to_dict(job)).exchanges[0].blocks == {0: (2,)}


def test_what_the_profiler_costs_is_taken_off(tmp_path):
    folder = write_job(tmp_path)
    plain = read_job(folder)
    steps = {"steps_s": [8e-4] * 20, "profiled": [8, 12], "event_s": 1e-6}
    for rank in (0, 1):
        (folder / f"rank{rank}.steps.json").write_text(json.dumps(steps))
    job = read_job(folder)
    assert job.measured.unprofiled_s == pytest.approx(8e-4)
    assert 0 < (plain.ranks[0].busy_s - job.ranks[0].busy_s) * US <= len(cpu_step(3))
    (folder / "rank1.steps.json").write_text("{}")
    with pytest.raises(DataError, match="rank1.steps.json"):
        read_job(folder)


def test_a_step_that_did_something_else_is_left_out(tmp_path):
    write(tmp_path, 0, [e for n in range(3, 6) for e in cpu_step(n)])
    odd = [e for e in cpu_step(4) if e["name"] != "aten::add_"]
    write(tmp_path, 1, [*cpu_step(3), *odd, *cpu_step(5)])
    assert len(read_job(tmp_path).measured.steps_s) == 2


def test_folders_without_all_traces_say_which(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        read_job(tmp_path / "none")
    with pytest.raises(DataError, match=r"holds nothing.*cdmpp.trace.record"):
        read_job(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"holds notes.txt"):
        read_job(tmp_path)
    write(tmp_path, 1, cpu_step(3), world=3)
    assert any("rank 0, 2 of 3 are missing" in text for text in traced_job(tmp_path, read_traces(tmp_path)).warnings)
    write(tmp_path, 1, cpu_step(3), packed=True)
    with pytest.raises(DataError, match=r"two traces are of rank 1.*any-8.json"):
        read_job(tmp_path)


def test_ranks_that_exchanged_other_things_are_refused(tmp_path):
    write(tmp_path, 0, cpu_step(3))
    write(tmp_path, 1, [e for e in cpu_step(3) if not (e["name"] == "gloo:all_reduce" and e["ts"] > 3300)])
    with pytest.raises(DataError, match=r"all_reduce of 1000 bytes number 2 is in the traces of ranks \[0\]"):
        read_job(tmp_path)


def test_traces_of_two_runs_are_refused(tmp_path):
    write(tmp_path, 0, [e for n in range(3, 6) for e in cpu_step(n)])
    other = [e for n in range(3, 6) for e in cpu_step(n)]
    for one in other:
        if one["ts"] > 4500:
            one["ts"] += 5000
    write(tmp_path, 1, other)
    with pytest.raises(DataError, match="no shift of the clocks"):
        read_job(tmp_path)
