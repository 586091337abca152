"""Exchanges of process groups: matched by sequence number, and refused where nobody can tell which ranks meet."""

from __future__ import annotations

import json

import pytest

from cdmpp import cli
from cdmpp.errors import DataError
from cdmpp.steps.replay import replay
from cdmpp.trace.folder import TracedJob, read_traces, traced_job
from cdmpp.trace.kineto import read_kineto
from tests.trace.field_jobs import Trace, steps_of
from tests.trace.small_traces import event, shaped

MS = 1e3
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"


def read(folder) -> TracedJob:
    return traced_job(folder, read_traces(folder))


def said(kind: str, ranks: list[int], sequence: int | None = None, items: int = 1000) -> dict:
    known = {
        "Collective name": kind, "dtype": "Float", "In msg nelems": items, "Out msg nelems": items,
        "Group size": len(ranks), "Process Group Name": str(ranks[0]), "Process Group Ranks": str(ranks),
    }  # fmt: skip
    return known if sequence is None else known | {"Seq": sequence}


def reduces(folder, is_counted: bool, lost=((), (1,))) -> TracedJob:
    """Three all-reduces a step, of 100, 200 and 300 us from the latest arrival on; rank 1 comes 50 us later to each.

    Args:
        folder: where traces go.
        is_counted: with sequence numbers.
        lost: for each rank which of the three its trace lacks.
    """
    for rank in range(2):
        trace = steps_of(Trace(rank, 2))
        for number in range(3):
            for place in range(3):
                if place not in lost[rank]:
                    begin = 5000 * number + 1000 * place
                    more = said("allreduce", [0, 1], 10 + 3 * number + place if is_counted else None)
                    launch, length = begin + 150 + rank, 100 * (place + 1) + 50 * (1 - rank)
                    trace.device(REDUCE, launch, begin + 400 + 50 * rank, length, 20, **more)
        trace.save(folder)
    return read(folder)


def test_sequence_numbers_say_which_exchanges_are_the_same(tmp_path):
    """The second one is not in the trace of rank 1: the third is still matched with the third."""
    job = reduces(tmp_path / "counted", is_counted=True)
    found = [(one.ranks, round(MS * 1000 * one.measured_s)) for one in job.graph.exchanges]
    assert found == [((0, 1), 100), ((0,), 250), ((0, 1), 300)]
    assert any("all_reduce with sequence number 11 is in the traces of ranks [0]" in text for text in job.warnings)
    assert not any("have no sequence number" in text for text in job.warnings)


def test_order_is_the_last_resort_and_said(tmp_path):
    job = reduces(tmp_path / "plain", is_counted=False, lost=((), ()))
    found = [(one.ranks, round(MS * 1000 * one.measured_s)) for one in job.graph.exchanges]
    assert found == [((0, 1), 100), ((0, 1), 200), ((0, 1), 300)]
    assert any("18 of 18 collectives have no sequence number" in text for text in job.warnings)


def hybrid(folder, is_told: bool) -> None:
    """Four ranks: gathers among 0 1 and 2 3, all-reduces among 0 2 and 1 3, as hybrid sharding has them."""
    for rank in range(4):
        trace = steps_of(Trace(rank, 4))
        shard, copies = [[0, 1], [2, 3]][rank // 2], [[0, 2], [1, 3]][rank % 2]
        trace.info["pg_config"] = [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            {"pg_name": "1", "pg_desc": "mesh_shard", "pg_size": 2, "ranks": shard},
            {"pg_name": "3", "pg_desc": "mesh_replicate", "pg_size": 2, "ranks": copies},
        ]
        for number in range(3):
            h = 5000 * number
            more = said("_allgather_base", shard, 2 * number) if is_told else {}
            trace.device("ncclDevKernel_AllGather_RING_LL(args)", h + 150, h + 400 + rank, 600 - rank, 20, **more)
            more = said("allreduce", copies, 2 * number) if is_told else {}
            trace.device(REDUCE, h + 170, h + 2400 + 10 * rank, 800 - 10 * rank, 20, **more)
        trace.save(folder)


def test_subgroups_that_the_trace_names(tmp_path):
    hybrid(tmp_path, is_told=True)
    job = read(tmp_path)
    found = sorted((one.kind, one.ranks, round(MS * 1000 * one.measured_s)) for one in job.graph.exchanges)
    assert found == [
        ("all_gather", (0, 1), 599),
        ("all_gather", (2, 3), 597),
        ("all_reduce", (0, 2), 780),
        ("all_reduce", (1, 3), 770),
    ]
    assert MS * replay(job.graph).step_s == pytest.approx(5, rel=0.01)


def test_subgroups_that_the_trace_does_not_tell_apart_are_refused(tmp_path, capsys):
    hybrid(tmp_path / "job", is_told=False)
    message = r"subgroup: process group '1' is of 2 of its 4 ranks, and 24 exchanges \(all_gather, all_reduce\) do not"
    with pytest.raises(DataError, match=message):
        read(tmp_path / "job")
    assert cli.main(["trace", str(tmp_path / "job")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["trace", str(tmp_path / "job"), "--check"]) == 0
    (tmp_path / "alone").mkdir()
    (tmp_path / "job" / "rank3.json").rename(tmp_path / "alone" / "rank3.json")
    assert MS * read(tmp_path / "alone").graph.measured.step_s == pytest.approx(5)


def gathers(folder, *, is_device: bool, size: int = 0, sub: bool = True):
    """One rank of four that gathers 4,000 bytes of its own, as records say that have shapes and no group."""
    trace = steps_of(Trace(0, 4, "nccl" if is_device else "gloo")) if is_device else Trace(0, 4, "gloo")
    if sub:
        trace.info["pg_config"] = [{"pg_name": "7", "pg_size": 2, "ranks": [0, 1]}, None, {"pg_size": "x"}]
    more = {"Group size": size} if size else {}
    if is_device:
        for number in range(3):
            trace.span("user_annotation", "nccl:_all_gather_base", 5000 * number + 148, 8, **shaped(1000), **more)
            trace.device(
                "ncclKernel_AllGather_RING_LL_Sum_int8_t(args)", 5000 * number + 150, 5000 * number + 400, 300, 20
            )
    else:
        trace.mark(0, 0, 5000)
        trace.events += [event("aten::mm", 10, 100), event("c10d::_allgather_base_", 105, 110, **shaped(1000))]
        trace.events.append(event("gloo:all_gather", 110, 300, 2, "user_annotation", **shaped(1000)))
    return trace.save(folder) / "rank0.json"


@pytest.mark.parametrize("is_device", [True, False])
def test_a_gather_without_a_group_in_a_job_with_several(tmp_path, is_device):
    trace = read_kineto(gathers(tmp_path / "sub", is_device=is_device))
    assert {one.bytes for step in trace.steps for one in step.exchanges} == {0}
    count = 3 if is_device else 1
    assert f"{count} all_gathers name no process group" in " ".join(trace.inventory.warnings)
    whole = read_kineto(gathers(tmp_path / "world", is_device=is_device, sub=False))
    assert {one.bytes for step in whole.steps for one in step.exchanges} == {16000}


def test_a_record_that_says_the_size_of_its_group(tmp_path):
    trace = read_kineto(gathers(tmp_path, is_device=True, size=2))
    assert {one.bytes for step in trace.steps for one in step.exchanges} == {8000}


@pytest.mark.parametrize("config", [3, "x", [], [3], [{"pg_size": True}], [{"pg_size": -2}], {"0": {"pg_size": 2}}])
def test_odd_groups_in_a_file_name_none(tmp_path, config):
    trace = steps_of(Trace(0, 4))
    trace.info["pg_config"] = config
    file = trace.save(tmp_path) / "rank0.json"
    assert json.loads(file.read_text())["distributedInfo"]["pg_config"] == config
    assert read_kineto(file).subgroups == {}
