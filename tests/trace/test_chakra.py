"""Chakra traces: a step survives them, those of others are read, and what has no node or is broken is refused."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdmpp import cli
from cdmpp.errors import CdmppError, DataError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.simulate.engine import simulate
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import HOST_COPY, Measured, Op, RankGraph, StepGraph
from cdmpp.steps.tasks import step_ends_s, step_tasks
from cdmpp.trace.chakra import messages, read_chakra, write_chakra
from cdmpp.trace.chakra.messages import COLLECTIVES, NODE_TYPES, file_of, schema
from tests.steps.toy_graph import MIB, ranks_of, wires
from tests.steps.toy_pipeline import pipeline
from tests.steps.toy_traced import job


def node(number: int, kind: str, after: tuple[int, ...] = (), micros: int = 0, **attributes: Any) -> Any:
    classes, made = schema(), []
    for name, value in attributes.items():
        one = classes.attribute(name=name)
        if isinstance(value, list):
            one.bool_list.values.extend(value)
        else:
            fields = {bool: "bool_val", int: "int64_val", str: "string_val", float: "double_val"}
            setattr(one, fields[type(value)], value)
        made.append(one)
    of_type = NODE_TYPES.index(kind)
    return classes.node(id=number, name=f"n{number}", type=of_type, data_deps=after, duration_micros=micros, attr=made)


def collective(number: int, kind: str, size: int, after: tuple[int, ...] = (), **attributes: Any) -> Any:
    return node(number, "COMM_COLL_NODE", after, comm_type=COLLECTIVES.index(kind), comm_size=size, **attributes)


def written(folder: Path, *ranks: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, nodes in enumerate(ranks):
        (folder / f"job.{rank}.et").write_bytes(file_of(schema().metadata(version="0.0.4"), nodes))
    return folder


def one_step_s(graph: StepGraph, topology: Any) -> float:
    timeline = simulate(step_tasks(graph, topology, steps=1), rates=topology.rates)
    return step_ends_s(timeline, len(graph.ranks), 1)[0]


def plain(graph: StepGraph) -> StepGraph:
    """The graph without what was measured of it besides, with each wait once."""
    exchanges = tuple(
        replace(
            one,
            before={rank: tuple(sorted(set(places))) for rank, places in one.before.items()},
            lag_s={rank: lag_s for rank, lag_s in one.lag_s.items() if lag_s},
        )
        for one in graph.exchanges
    )
    return replace(graph, exchanges=exchanges, measured=Measured())


def streams() -> StepGraph:
    """Copies on a stream of their own, a delay, and an exchange that follows another of its rank."""
    ops = (
        Op("load", "forward", 1e-3, kind=HOST_COPY, stream="copies", output_bytes=64),
        Op("a", "forward", 2e-3, gap_s=1e-4, waits=(0,), delay_s=3e-4, inputs=(0,), held=(0,)),
        Op("store", "backward", 1e-3, stream="copies", waits=(1,)),
        Op("b", "update", 1e-3),
    )
    every, some = {rank: 1 for rank in range(4)}, {0: 3, 1: 3}
    exchanges = (
        Exchange("all_gather", 4 * MIB + 1, every, {rank: (3, 4) for rank in range(4)}, "weights", along=("data",)),
        Exchange("reduce_scatter", MIB, some, {0: (4,), 1: (4,)}, group="pair", follows=True),
        Exchange("broadcast", MIB, dict.fromkeys(range(4), START), {2: (0,)}, "buffers", group="other"),
    )
    return StepGraph(tuple(RankGraph(rank, ops) for rank in range(4)), exchanges, "nccl")


GRAPHS: dict[str, Callable[[], StepGraph]] = {
    "ddp": lambda: DDP(bucket_bytes=(4 * MIB,)).apply(ranks_of(4, gap_s=2e-4)),
    "fsdp": lambda: FSDP().apply(ranks_of(4)),
    "pipeline": lambda: pipeline(2, 2, 3),
    "streams": streams,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_step_survives_its_traces(name, tmp_path):
    graph, one, two = GRAPHS[name](), tmp_path / "one", tmp_path / "two"
    write_chakra(graph, one)
    again = read_chakra(one)
    assert again == plain(graph)
    topology = wires(len(graph.ranks))
    assert replay(again, topology).step_s == replay(graph, topology).step_s
    write_chakra(again, two)
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in two.iterdir()
    }


def test_a_traced_step_survives_with_its_measured_exchanges(tmp_path):
    graph = job(slow=1.5, latency_s=0.25, gap_s=0.1)
    graph = replace(graph, exchanges=tuple(replace(one, lag_s={0: 0.125}) for one in graph.exchanges))
    write_chakra(graph, tmp_path)
    assert read_chakra(tmp_path) == plain(graph)
    assert replay(read_chakra(tmp_path)).step_s == replay(graph).step_s


@pytest.mark.parametrize("name", GRAPHS)
def test_the_nodes_alone_say_the_same_step(name, tmp_path):
    """Without our attribute the traces are read as those of others are: to the microsecond the same step."""
    graph = GRAPHS[name]()
    for path in write_chakra(graph, tmp_path):
        if path.suffix != ".et":
            continue
        metadata, nodes = messages.messages_of(path.read_bytes(), path)
        for message in (metadata, *nodes):
            kept = [one for one in message.attr if one.name != "cdmpp"]
            del message.attr[:]
            message.attr.extend(kept)
        path.write_bytes(file_of(metadata, nodes))
    bare = read_chakra(tmp_path)
    topology = wires(len(graph.ranks))
    expected_s = one_step_s(plain(graph), topology)
    assert one_step_s(bare, topology) == pytest.approx(expected_s, abs=3e-6)
    assert [sum(op.duration_s for op in rank.ops) for rank in bare.ranks] == pytest.approx(
        [rank.busy_s + rank.idle_s for rank in graph.ranks], abs=3e-6
    )


def test_whole_microseconds_do_not_add_up_to_an_error(tmp_path):
    ops = tuple(Op(f"op {place}", "forward", 0.4e-6) for place in range(1000))
    path = write_chakra(StepGraph((RankGraph(0, ops),)), tmp_path)[0]
    _, nodes = messages.messages_of(path.read_bytes(), path)
    ends = [0]
    for one in nodes[:1000]:
        ends.append(ends[-1] + one.duration_micros)
    assert all(abs(end - 0.4 * place) <= 0.5 + 1e-9 for place, end in enumerate(ends))


def test_groups_and_sizes_are_those_of_chakra(tmp_path):
    paths = write_chakra(streams(), tmp_path, "job")
    assert paths[-1].name == "job.groups.json"
    assert paths[-1].read_text() == '{\n "1": [\n  0,\n  1\n ]\n}\n'
    _, nodes = messages.messages_of(paths[0].read_bytes(), paths[0])
    found = {}
    for one in nodes:
        said = {each.name: getattr(each, each.WhichOneof("value")) for each in one.attr}
        if "comm_type" in said:
            found[COLLECTIVES[said["comm_type"]]] = (said["comm_size"], said["pg_name"], said["is_cpu_op"])
    assert found == {
        "ALL_GATHER": (MIB + 1, "0", False), "REDUCE_SCATTER": (MIB, "1", False), "BROADCAST": (MIB, "0", False),
    }  # fmt: skip


def test_traces_of_others_are_read(tmp_path):
    """Two ranks: ops on two streams, a collective that waits for both, a message, and a group of one's own."""

    def rank(number: int) -> list[Any]:
        kind = "COMM_SEND_NODE" if number == 0 else "COMM_RECV_NODE"
        peer = {"comm_dst": 1} if number == 0 else {"comm_src": 0}
        return [
            node(9, "METADATA_NODE"),
            node(1, "COMP_NODE", (9,), 1000, is_cpu_op=False),
            node(2, "COMP_NODE", (), 500, is_cpu_op=True),
            collective(3, "ALL_GATHER", MIB, (1, 2)),
            node(4, "COMP_NODE", (3,), 2000),
            collective(5, "ALL_REDUCE", 2 * MIB, (4, 3), pg_name="0"),
            node(6, kind, (4,), comm_size=MIB, comm_tag=7, **peer),
            node(7, "MEM_STORE_NODE", (6,), 10),
        ]  # fmt: skip

    graph = read_chakra(written(tmp_path / "job", rank(0), rank(1)))
    ops = graph.ranks[0].ops
    assert [(op.name, op.duration_s, op.stream, op.waits) for op in ops] == [
        ("n2", pytest.approx(5e-4), "host", ()),
        ("n1", pytest.approx(1e-3), "compute", ()),
        ("n3 launch", 0.0, "launch 3", (0, 1)),
        ("n4", pytest.approx(2e-3), "compute", ()),
        ("n7", pytest.approx(1e-5), "copies", ()),
    ]
    said = [(one.kind, one.bytes, one.after[0], one.before[0], one.peers) for one in graph.exchanges]
    assert said == [
        ("all_gather", 2 * MIB, 2, (3,), None),
        ("all_reduce", 2 * MIB, 3, (5,), None),
        ("send_recv", MIB, 3, (4,), (0, 1)),
    ]
    wire_s = 1e-4 + 1e-9 * MIB  # a step of a ring of two ranks, and a message, carry half of two, and one MiB
    step_s = 1e-3 + wire_s + 2e-3 + max(2 * wire_s, wire_s + 1e-5)
    assert one_step_s(graph, wires(2)) == pytest.approx(step_s)


def test_a_group_is_of_those_that_know_it(tmp_path):
    inner = [collective(1, "ALL_REDUCE", MIB, pg_name="3")]
    graph = read_chakra(written(tmp_path / "job", [], inner, inner))
    assert [(one.ranks, one.group) for one in graph.exchanges] == [((1, 2), "3")]


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([[node(1, "COMP_NODE"), node(1, "COMP_NODE")]], "two nodes of id 1"),
        ([[node(1, "COMP_NODE", (2,))]], "needs node 2, which is not there"),
        ([[node(1, "COMP_NODE", (2,)), node(2, "COMP_NODE", (1,)), node(3, "COMP_NODE")]], "in a circle"),
        ([[node(1, "COMP_NODE", (1,))]], "in a circle"),
        ([[node(1, "COMP_NODE", (), 2**63)]], "expected at most"),
        ([[node(1, "STORAGE_NODE")]], "STORAGE_NODE which a step graph has no counterpart for"),
        ([[node(1, "INVALID_NODE")]], "INVALID_NODE which"),
        ([[node(1, "MEM_LOAD_NODE")]], "MEM_LOAD_NODE without a duration"),
        ([[collective(1, "BARRIER", 8)]], "is a BARRIER"),
        ([[node(1, "COMM_COLL_NODE", comm_size=8)]], "is a None"),
        ([[node(1, "COMM_COLL_NODE", comm_type=99, comm_size=8)]], "is a 99"),
        ([[collective(1, "ALL_REDUCE", 0)]] * 2, "comm_size of node 1"),
        ([[collective(1, "ALL_REDUCE", -8)]] * 2, "comm_size of node 1"),
        ([[collective(1, "ALL_REDUCE", 8)], []], "is in the traces of ranks 0: expected those of 0, 1"),
        ([[collective(1, "ALL_REDUCE", 8)], [collective(1, "ALL_REDUCE", 16)]], "on rank 1"),
        ([[collective(1, "ALL_REDUCE", 8)], [collective(1, "ALL_GATHER", 8)]], "on rank 1"),
        ([[collective(1, "ALL_REDUCE", 8, involved_dim=[True, False])]] * 2, "involved_dim"),
        ([[collective(1, "ALL_REDUCE", 8, is_cpu_op=True)]] * 2, "exchange of a CPU"),
        ([[node(1, "COMM_SEND_NODE", comm_dst=1, comm_size=8)], []], "expected those of 0, 1"),
        ([[node(1, "COMM_SEND_NODE", comm_dst=0, comm_size=8)]], "to itself"),
        ([[node(1, "COMM_SEND_NODE", comm_size=8)]], "comm_dst of node 1"),
        ([[node(1, "COMM_SEND_NODE", comm_src=3, comm_dst=1, comm_size=8)]], "comm_src 3"),
        ([[node(1, "COMP_NODE", num_ops=float("nan"))]], "expected a finite number"),
        ([[node(1, "COMP_NODE", cdmpp="{")]], "is no JSON"),
        ([[node(1, "COMP_NODE", cdmpp="[]")]], "expected an object"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, ranks, says):
    with pytest.raises(CdmppError, match=says):
        read_chakra(written(tmp_path / "job", *ranks))


def test_ranks_that_wait_for_each_other_are_refused_where_they_are_replayed(tmp_path):
    first = [collective(1, "ALL_REDUCE", 8, pg_name="1"), collective(2, "ALL_REDUCE", 8, (1,), pg_name="2")]
    second = [collective(1, "ALL_REDUCE", 8, (2,), pg_name="1"), collective(2, "ALL_REDUCE", 8, pg_name="2")]
    graph = read_chakra(written(tmp_path / "job", first, second))
    with pytest.raises(DataError, match="in a circle"):
        replay(graph, wires(2))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "length of a message"),
        (b"\x80", "length of a message"),
        (b"\xff\xff\xff\x7f", "announces a message of 268,435,455 bytes"),
        (b"\x00\x03\x08\x01", "announces a message of 3 bytes"),
        (b"\x00\x02\xff\xff", "is no message"),
        (b"\x00\x03\x12\x01\xff", "is no message"),
    ],
)
def test_files_that_are_no_traces_are_refused(tmp_path, content, says):
    (tmp_path / "job.0.et").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_chakra(tmp_path)


def test_folders_without_all_ranks_are_refused(tmp_path):
    with pytest.raises(DataError, match="no traces"):
        read_chakra(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        read_chakra(tmp_path / "none")
    written(tmp_path, [], [], [])
    (tmp_path / "job.1.et").unlink()
    with pytest.raises(DataError, match="traces of ranks 0, 2"):
        read_chakra(tmp_path)
    (tmp_path / "job.1.et").write_bytes((tmp_path / "job.0.et").read_bytes())
    (tmp_path / "other.0.et").write_bytes((tmp_path / "job.0.et").read_bytes())
    with pytest.raises(DataError, match="traces of 2 jobs, job, other"):
        read_chakra(tmp_path)


def test_a_trace_of_ours_that_somebody_changed_is_refused(tmp_path):
    write_chakra(GRAPHS["ddp"](), tmp_path / "good")
    content = (tmp_path / "good" / "step.1.et").read_bytes()
    metadata, nodes = messages.messages_of(content, Path("step.1.et"))
    first = next(one for one in nodes if NODE_TYPES[one.type] == "COMM_COLL_NODE")

    def broken(change: Callable[[], None], says: str) -> None:
        kept = [type(one).FromString(one.SerializeToString()) for one in nodes]
        change()
        changed = file_of(metadata, nodes)
        for one, other in zip(nodes, kept, strict=True):
            one.CopyFrom(other)
        folder = tmp_path / "bad"
        folder.mkdir(exist_ok=True)
        for path in (tmp_path / "good").iterdir():
            (folder / path.name).write_bytes(changed if path.name == "step.1.et" else path.read_bytes())
        with pytest.raises(CdmppError, match=says):
            read_chakra(folder)

    def set_value(one: Any, name: str, value: int) -> None:
        next(each for each in one.attr if each.name == name).int64_val = value

    def without_dependency() -> None:
        del nodes[2].data_deps[:]

    broken(lambda: setattr(nodes[0], "duration_micros", 17), "takes 17 us")
    broken(lambda: set_value(first, "comm_size", 17), "comm_size|on rank 1")
    broken(lambda: set_value(first, "comm_type", COLLECTIVES.index("ALL_TO_ALL")), "on rank 1")
    broken(lambda: setattr(first, "duration_micros", 5), "takes 5 us")
    broken(without_dependency, "does not need what stands before it")


@pytest.mark.parametrize("seed", range(4))
def test_broken_bytes_are_refused_or_harmless(tmp_path, seed):
    """Whatever is flipped, cut or doubled: a step graph, or one line of ours."""
    write_chakra(GRAPHS["streams"](), tmp_path)
    path = tmp_path / "step.0.et"
    content, draw, refused = path.read_bytes(), random.Random(seed), 0
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(draw.choice((1, 1, 4))):
            place = draw.randrange(len(changed))
            match draw.randrange(3):
                case 0:
                    changed[place] ^= 1 << draw.randrange(8)
                case 1:
                    del changed[place : place + draw.randrange(1, 40)]
                case _:
                    changed[place:place] = changed[place : place + 20]
        path.write_bytes(bytes(changed))
        try:
            read_chakra(tmp_path)
        except CdmppError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 3000
    assert refused > 40


def changed(graph: StepGraph, **fields: Any) -> StepGraph:
    first, *others = graph.exchanges
    return replace(graph, exchanges=(replace(first, **fields), *others))


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (lambda: ParameterServer().apply(ranks_of(2)), "push_pull is none of"),
        (lambda: pipeline(2, 2, 3, folded=True), "stand for"),
        (lambda: replace(job(), processors=("one", "one")), "processors that ranks share"),
        (lambda: replace(job(), processor_share=0.5), "share of a processor"),
        (lambda: replace(job(), is_contention_free=True), "next to no exchange"),
        (lambda: changed(job(), bytes=0), "its bytes are unknown"),
        (lambda: changed(job(), kind="barrier"), "barrier is none of"),
        (lambda: changed(job(), blocks={0: (1,)}), "late because of its buffer"),
    ],
)
def test_what_has_no_node_is_refused(tmp_path, graph, says):
    with pytest.raises(CdmppError, match=says):
        write_chakra(graph(), tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_traces_of_another_step_are_not_left_beside(tmp_path):
    write_chakra(DDP().apply(ranks_of(3)), tmp_path)
    with pytest.raises(DataError, match="holds step.2.et of another step"):
        write_chakra(DDP().apply(ranks_of(2)), tmp_path)
    write_chakra(DDP().apply(ranks_of(2)), tmp_path, "other")


def test_without_protobuf_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    messages.schema.cache_clear()
    with pytest.raises(CdmppError, match=r"pip install 'cdmpp\[chakra\]'"):
        write_chakra(GRAPHS["ddp"](), tmp_path)


LAYERS = (
    "name,forward_s,backward_s,parameter_bytes,output_bytes\none,1e-3,2e-3,4194304,1024\ntwo,1e-3,2e-3,8388608,1024\n"
)


def test_the_command_line_writes_and_replays_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("layers.csv").write_text(LAYERS)
    step = ["step", "layers.csv", "--device", "a100", "--ranks", "4", "--link", "nvlink3", "--json"]
    assert cli.main([*step, "--chakra", "traces"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main(["trace", "traces", "--link", "nvlink3", "--json", "--chakra", "again"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["iteration_s"] == first["iteration_s"] and second["ranks"] == 4
    assert sorted(path.name for path in Path("again").iterdir()) == [f"step.{rank}.et" for rank in range(4)]
    for words, says in (
        (["trace", "traces"], "--link or --cluster is missing"),
        (["trace", "traces", "--link", "nvlink3", "--diagnose"], "--diagnose is of traces of torch.profiler"),
        (["step", "layers.csv", "--device", "a100", "--chakra", "x"], "--chakra goes with --ranks"),
        ([*step, "--chakra", "layers.csv"], "layers.csv is a file"),
    ):
        assert cli.main(words) == 2
        assert says in capsys.readouterr().err
