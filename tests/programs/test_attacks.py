"""What comes from somebody else never runs: attacks by hand, and mutants of valid scripts."""

from __future__ import annotations

import base64
import json
import os
import random
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

tvm = pytest.importorskip("tvm")

from cdmpp.errors import CdmppError, DataError, UnsupportedProgramError  # noqa: E402
from cdmpp.programs.database import BadLine, read_workloads  # noqa: E402
from cdmpp.programs.gate import check_trace, load_graph  # noqa: E402
from cdmpp.programs.legacy import legacy_to_script  # noqa: E402
from cdmpp.programs.replay import parse_target, parse_workload, replay_on  # noqa: E402
from cdmpp.programs.script import parse_text, read_script  # noqa: E402

pytestmark = pytest.mark.tvm

SCRIPT = """from tvm.script import ir as I
from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": 16}):
            with T.sblock("B"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v] = T.max(A[v], T.float32(0))
"""

RUN = "mkdir('ran')"
EXPRESSIONS = [
    f"__import__('os').{RUN}",
    f"(lambda m: m.os.{RUN})(T)",
    f"(lambda m: m.parser.core.entry.inspect.os.{RUN})(I)",
    f"T.entry.inspect.os.{RUN}",
    f"T.parser.tvm.os.{RUN}",
    f"[T][0].parser.tvm.os.{RUN}",
    f"(T, I)[0].entry.inspect.os.{RUN}",
    f"{{'a': T}}['a'].entry.inspect.os.{RUN}",
    f'T.entry.parse("import os; os.{RUN}")',
    f'T.utils.inspect.sys.modules["os"].{RUN}',
    f"(m := T).entry.inspect.os.{RUN}",
    f"[m.entry.inspect.os.{RUN} for m in [T]][0]",
    f"{{m.entry.inspect.os.{RUN} for m in [T]}}",
    f"list(m.entry.inspect.os.{RUN} for m in [T])[0]",
    f"eval(\"__import__('os').{RUN}\")",
    f'exec("import os; os.{RUN}")',
    f"T.float32(0).__class__.__base__.__subclasses__()[0].{RUN}",
    f"getattr(T, 'entry').inspect.os.{RUN}",
    f"T.macro(lambda: __import__('os').{RUN})()",
    f"T.inline(lambda m: m.os.{RUN})(T)",
    f"T.meta_var(T).value.entry.inspect.os.{RUN}",
    f"T.max(*[__import__('os').{RUN}])",
    f"T.max(**{{'a': __import__('os').{RUN}}})",
    "open('ran', 'w')",
    "T.call_packed('os.system', 'mkdir ran')",
    "T.call_extern('int32', 'system', 'mkdir ran')",
    "T.call_llvm_intrin('float32', 'llvm.trap')",
    "T.cuda.func_call('f', source_code='asm')",
    "T.tvm_call_cpacked('system', 'mkdir ran')",
    "f\"{__import__('os').mkdir('ran')}\"",
    f"(yield __import__('os').{RUN})",
    f"T.float32(0) if __import__('os').{RUN} else T.float32(1)",
    f"A.__class__.__init__.__globals__['os'].{RUN}",
    "breakpoint()",
]
PLACES = [
    ("T.float32(0)", "{}"),
    ("T.serial(8,", "T.serial({},"),
    ("T.axis.spatial(8, i)", "T.axis.spatial({}, i)"),
    ("T.Buffer((8,)", "T.Buffer(({},)"),
    ('T.sblock("B")', "T.sblock({})"),
    ("T.reads(A[v])", "T.reads(A[{}])"),
    ('"tirx.noalias": True', '"tirx.noalias": {}'),
    ('"pragma_auto_unroll_max_step": 16', '"pragma_auto_unroll_max_step": {}'),
    ("s_tir=True", "s_tir={}"),
    ("B[v] = T.max", "B[{}] = T.max"),
]
WHOLE = {
    "default argument": SCRIPT.replace('"float32")):', f"\"float32\") = __import__('os').{RUN}):"),
    "annotation": SCRIPT.replace('A: T.Buffer((8,), "float32")', f"A: __import__('os').{RUN}"),
    "annotation in quotes": SCRIPT.replace('A: T.Buffer((8,), "float32")', f"A: \"__import__('os').{RUN}\""),
    "decorator": SCRIPT.replace("@I.ir_module", f"@__import__('os').{RUN}"),
    "second decorator": SCRIPT.replace("@I.ir_module", f"@__import__('os').{RUN}\n@I.ir_module"),
    "decorator argument": SCRIPT.replace("@I.ir_module", f"@I.ir_module(check_well_formed=__import__('os').{RUN})"),
    "base class": SCRIPT.replace("class Module:", f"class Module(__import__('os').{RUN}):"),
    "metaclass": SCRIPT.replace("class Module:", f"class Module(metaclass=__import__('os').{RUN}):"),
    "class body": SCRIPT.replace("class Module:", f"class Module:\n    x = __import__('os').{RUN}"),
    "return annotation": SCRIPT.replace('"float32")):', f"\"float32\")) -> __import__('os').{RUN}:"),
    "import": SCRIPT.replace("        for i", f"        import os\n        os.{RUN}\n        for i"),
    "star parameter": SCRIPT.replace('"float32")):', f"\"float32\"), *c: __import__('os').{RUN}):"),
    "with": SCRIPT.replace('with T.sblock("B"):', "with open('ran', 'w'):"),
    "with as": SCRIPT.replace('T.sblock("B"):', f"T.sblock(\"B\") as B[__import__('os').{RUN}]:"),
    "loop over a list": SCRIPT.replace("T.serial(8, ", f"list([__import__('os').{RUN}] or "),
    "while": SCRIPT.replace("        for i", f"        while __import__('os').{RUN}:\n            pass\n        for i"),
    "assert": SCRIPT.replace("        for i", f"        assert __import__('os').{RUN}\n        for i"),
    "del": SCRIPT.replace("        for i", f"        del A[__import__('os').{RUN}]\n        for i"),
    "inner function": SCRIPT.replace("        for i", f"        def f(a=__import__('os').{RUN}): pass\n        for i"),
    "try": SCRIPT.replace(
        "        for i", f"        try: __import__('os').{RUN}\n        finally: pass\n        for i"
    ),
    "rebound T": SCRIPT.replace("        for i", "        T = I\n        for i"),
    "rebound name": SCRIPT.replace(
        "v = T.axis", f"v = eval\n                v(\"__import__('os').{RUN}\")\n                v = T.axis"
    ),
    "module attribute": SCRIPT.replace("T.max(", f"T.os.{RUN} or T.max("),
    "huge power": SCRIPT.replace("T.float32(0)", "9 ** 9 ** 9 ** 9"),
    "huge shift": SCRIPT.replace("T.float32(0)", "1 << 10 ** 12"),
    "long text": SCRIPT.replace("T.float32(0)", "'a' * 10 ** 12"),
    "long list": SCRIPT.replace("T.reads(A[v])", "T.reads([A[v]] * 10 ** 12)"),
    "pragma with text": SCRIPT.replace('"pragma_auto_unroll_max_step": 16', '"pragma_import_llvm": "evil.ll"'),
    "pragma with code": SCRIPT.replace('"pragma_auto_unroll_max_step": 16', '"pragma_import_c": "main"'),
    "quoted shape": SCRIPT.replace("T.Buffer((8,)", 'T.Buffer(("T.entry",)'),
}
# Line ends that `str.splitlines` knows and Python's parser does not: code stood in text that nobody looked at.
for _name, _end in {
    "form feed": "\x0c",
    "file separator": "\x1c",
    "next line": "\x85",
    "line separator": "\u2028",
}.items():
    WHOLE[_name] = (
        f'# {_end * 3}\n"""\n@T.prim_func\ndef f(a: __import__("os").mkdir("ran")): pass\n"""\n'
        + SCRIPT.replace("T.float32(0)", "T.entry.inspect")
    )


def attacks() -> list[tuple[str, str]]:
    generator = random.Random(0)
    found = list(WHOLE.items())
    for expression in EXPRESSIONS:
        for old, new in generator.sample(PLACES, 3):
            assert old in SCRIPT
            found.append((f"{expression} in {old}", SCRIPT.replace(old, new.format(expression), 1)))
    return found


def test_there_are_a_hundred():
    assert len(attacks()) >= 100
    assert all(text != SCRIPT for _, text in attacks())


@pytest.mark.parametrize("text", [text for _, text in attacks()], ids=[name[:60] for name, _ in attacks()])
def test_an_attack_is_refused_and_does_not_run(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedProgramError, match="script.py"):
        read_script(path, tvm.target.Target("llvm"))
    with pytest.raises(DataError):
        parse_workload(text)
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


SINS = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "subprocess.Popen",
    "socket.connect",
}
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple) -> None:
    if _seen is not None and (event in SINS or (event == "open" and _writes(arguments))):
        _seen.append(f"{event} {arguments}")


def _writes(arguments: tuple) -> bool:
    mode, flags = arguments[1], arguments[2]
    return any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


sys.addaudithook(_watch)

FRAGMENTS = [
    "T",
    "I",
    ".",
    "(",
    ")",
    "[",
    "]",
    "lambda m: m",
    "eval",
    "__import__('os')",
    ".entry",
    ":=",
    "*",
    "**",
    '"',
    "'",
    "\n",
    "\x0c",
]
FRAGMENTS += [
    "open('ran', 'w')",
    ".mkdir('ran')",
    "for",
    "if",
    "@",
    "import os",
    "A[v]",
    "range",
    "exec",
    "#",
    "\\",
    "{",
    "}",
    "=",
    "9**9**9",
]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(FRAGMENTS)), min_size=1, max_size=4))
def test_a_mutant_is_read_or_refused_and_never_runs(edits):
    global _seen
    text = SCRIPT
    for place, length, fragment in edits:
        at = int(place * len(text))
        text = text[:at] + fragment + text[at + length :]
    _seen = []
    try:
        parse_text(text, "mutant")
    except CdmppError:
        pass
    finally:
        seen, _seen = _seen, None
    assert not seen


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
    import gzip

    from cdmpp.programs.database import _graph_of_line

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
    """TVM's own readers are called in the gate, and by what reads text that was made here."""
    package = Path(__file__).resolve().parents[2] / "cdmpp"
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in ("from_source(", "script.parse(", "load_json(", "tvm.ir.load"))
    }
    made_here = {"programs/networks.py", "data/derive_worker.py"}
    assert callers == {"programs/gate.py", "programs/script.py"} | made_here
