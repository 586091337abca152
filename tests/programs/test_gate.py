"""Graphs, traces and targets from somebody else hold tensor programs or are refused."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from pathlib import Path

import pytest

tvm = pytest.importorskip("tvm")

from cdmpp.errors import CdmppError, DataError, UnsupportedProgramError  # noqa: E402
from cdmpp.programs.database import BadLine, _graph_of_line, read_workloads  # noqa: E402
from cdmpp.programs.gate import check_trace, load_graph  # noqa: E402
from cdmpp.programs.legacy import legacy_to_script  # noqa: E402
from cdmpp.programs.replay import parse_target, replay_on  # noqa: E402
from cdmpp.programs.script import parse_text  # noqa: E402
from tests.programs.attacks import SCRIPT  # noqa: E402

pytestmark = pytest.mark.tvm


def graph_with(change) -> str:
    graph = json.loads(tvm.ir.save_json(parse_text(SCRIPT, "here")))
    change(graph["nodes"])
    return json.dumps(graph)


def _retype(kind: str):
    def change(nodes: list) -> None:
        next(node for node in nodes if node["type"] == "prim.Max")["type"] = kind

    return change


def _rename(nodes: list) -> None:
    next(node for node in nodes if node["type"] == "ffi.String" and node["data"] == "B")["data"] = 'B"); system("x'


GRAPHS = {
    "a function": graph_with(_retype("ffi.Function")),
    "a library": graph_with(_retype("ffi.Module")),
    "an environment function": graph_with(_retype("ir.EnvFunc")),
    "Python": graph_with(_retype("ffi.OpaquePyObject")),
    "code as a name": graph_with(_rename),
    "no list": json.dumps({"root_index": 0, "nodes": {}}),
    "other keys": json.dumps({"root_index": 0, "nodes": [], "libraries": ["x"]}),
    "a chain": json.dumps(
        {"root_index": 4999, "nodes": [{"type": "None"}, *({"type": "ffi.Array", "data": [i]} for i in range(4999))]}
    ),
    "doubled forty times": json.dumps(
        {"root_index": 40, "nodes": [{"type": "None"}, *({"type": "ffi.Array", "data": [i, i]} for i in range(40))]}
    ),
    "a circle": json.dumps({"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}]}),
    "no module": json.dumps({"root_index": 0, "nodes": [{"type": "int", "data": 3}]}),
    "text": '"nodes"',
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_holds_a_tensor_program_or_is_refused(text):
    assert load_graph(graph_with(lambda nodes: None), "here")
    with pytest.raises(UnsupportedProgramError, match="here"):
        load_graph(text, "here")


def test_a_call_of_foreign_code_is_refused_in_a_graph():
    body = SCRIPT.partition("\n\n")[2].replace("T.max(A[v], T.float32(0))", "T.call_extern('float32', 'system', A[v])")
    module = tvm.script.from_source(body)
    with pytest.raises(UnsupportedProgramError, match="call_extern"):
        load_graph(tvm.ir.save_json(module), "here")


def test_a_bad_workload_of_a_database_costs_itself_only(tmp_path):
    def line(graph: str) -> str:
        raw = graph.encode()
        return json.dumps(["0", base64.b64encode(struct.pack("<Q", len(raw)) + raw).decode()])

    good, bad = graph_with(lambda nodes: None), GRAPHS["a library"]
    (tmp_path / "database_workload.json").write_text("\n".join(map(line, [good, bad, good])))
    (tmp_path / "database_tuning_record.json").write_text("")
    first, second, third = read_workloads(tmp_path)
    assert isinstance(second, BadLine) and "ffi.Module" in second.reason and second.number == 2
    tvm.ir.assert_structural_equal(first, third)


def test_a_legacy_type_cannot_leave_its_string(legacy_database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = gzip.decompress((legacy_database / "database_workload.json.gz").read_bytes()).decode().splitlines()[0]
    graph = json.loads(_graph_of_line(tmp_path, 1, line))
    for node in graph["nodes"]:
        if node["type_key"] == "tir.Buffer":
            node["attrs"]["dtype"] = "float32\"), __import__('os').mkdir('ran'), (\"float32"
    with pytest.raises(CdmppError):
        parse_text(legacy_to_script(json.dumps(graph)), "legacy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "cl-opt": ["-load=evil.so"]},
        {"kind": "llvm", "jit": "orcjit"},
        {"kind": "c"},
        {"kind": "llvm", "host": {"kind": "llvm", "cl-opt": ["-load=evil.so"]}},
        {"kind": "llvm", "mcpu": "x\n(y)"},
        {"mcpu": "znver4"},
        ["llvm"],
    ],
)
def test_a_target_describes_a_device_or_is_refused(target):
    assert str(parse_target({"kind": "llvm", "mcpu": "znver4"}).kind) == "llvm"
    with pytest.raises(DataError, match="target"):
        parse_target(target)


@pytest.mark.parametrize(
    "trace",
    [
        [[["Annotate", ["b0", '"evil.ll"'], ["pragma_import_llvm"], []]], []],
        [[["Annotate", ["b0", json.dumps(GRAPHS["a library"])], ["pragma_scope"], []]], []],
        [[["TransformLayout", ["b0", GRAPHS["a library"]], [0, 0, None, True], []]], []],
        [[["GetSBlock", [], ["b", "main()"], ["b0"]]], []],
        [[["GetSBlock"]], []],
        [["GetSBlock"], []],
        [[], [[0, [4, 4]]]],
        [[["GetSBlock", [], ["B", "main"], ["b0"]]], [[-1, 4]]],
        [[["GetSBlock", [], ["B", "main"], ["b0"]]], [[True, 4]]],
        [[["GetSBlock", [], ["B", "main"], ["b0"]]], [4]],
        {"a": 1},
    ],
)
def test_a_trace_names_steps_and_blocks_or_is_refused(trace):
    check_trace([[["GetSBlock", [], ["B", "main"], ["b0"]]], []], "here")
    with pytest.raises(UnsupportedProgramError, match="here"):
        check_trace(trace, "here")
    with pytest.raises(DataError):
        replay_on(parse_text(SCRIPT, "here"), json.dumps(trace))


def test_no_room_goes_round_the_gate():
    """TVM's own readers are called in the gate, and by what reads text that was made here.

    `replay.py` reads graphs that `network/graph.py` wrote into the user's own cache.
    """
    package = Path(__file__).resolve().parents[2] / "cdmpp"
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in ("from_source(", "script.parse(", "load_json(", "tvm.ir.load"))
    }
    made_here = {"programs/networks.py", "programs/replay.py", "data/derive_worker.py", "network/compiled/worker.py"}
    made_here |= {"tuning/build_worker.py"}  # modules that the search in the parent process holds
    assert callers == {"programs/gate.py", "programs/script.py"} | made_here
