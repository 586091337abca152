"""Kernels whose addresses, branches or types are not those of convolutions: look-ups, masks, halves, infinities."""

import pytest

pytest.importorskip("tvm")

from cdmpp import devices
from cdmpp.machine_code.gpu.cuda import assembled, can_compile_cuda
from cdmpp.machine_code.gpu.cuda_source import cuda_source
from cdmpp.machine_code.gpu.sass_rows import rows_of
from cdmpp.machine_code.gpu.warp import run_warp
from cdmpp.programs.replay import replay

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'"),
]
N = 1024


def kernel(parameters, value):
    """One block of 256 threads for each 256 of ``B[v] = value``."""
    return f"""@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main({parameters}):
        for b in T.thread_binding({N // 256}, thread="blockIdx.x"):
            for t in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("B"):
                    v = T.axis.spatial({N}, b * 256 + t)
                    B[v] = {value}"""


def buffer(name, dtype, size=N):
    return f'{name}: T.Buffer(({size},), "{dtype}")'


KERNELS = {
    "look-up": (
        [buffer("A", "float32", 64 * N), buffer("R", "int64", N // 64), buffer("B", "float32")],
        "A[R[v // 64] * T.int64(64) + T.Cast('int64', v % 64)]",
    ),
    "mask": (
        [buffer("A", "float32"), buffer("M", "bool"), buffer("B", "float32")],
        "T.if_then_else(M[v], T.exp(A[v]), T.float32(-1))",
    ),
    "infinity": ([buffer("A", "float32"), buffer("B", "float32")], "T.max(A[v], T.float32('-inf'))"),
    "half": ([buffer("A", "float16"), buffer("B", "float16")], "A[v] * T.float16(0.5) + T.float16(1)"),
    "select": ([buffer("A", "float32"), buffer("B", "float32")], "T.Select(A[v] > T.float32(0), A[v], T.float32(1.5))"),
    "whole": ([buffer("A", "float32"), buffer("B", "int64")], "T.Cast('int64', A[v])"),
    "tanh": ([buffer("A", "float32"), buffer("B", "float32")], "T.tanh(A[v])"),
    "erf": ([buffer("A", "float32"), buffer("B", "float32")], "T.erf(A[v])"),
}


@pytest.fixture(scope="module")
def compiled():
    target = devices.get("h100").target
    sources = {
        name: cuda_source(replay(kernel(", ".join(parameters), value), "[[],[]]", target))
        for name, (parameters, value) in KERNELS.items()
    }
    machine = assembled({name: source.text for name, source in sources.items()}, 90)
    return {name: (source, machine[name]) for name, source in sources.items()}


@pytest.mark.parametrize("name", list(KERNELS))
def test_it_is_read(compiled, name):
    source, machine = compiled[name]
    (launch,) = source.launches.values()
    code, literals = machine.kernels["main_kernel"], machine.literals.get("main_kernel", b"")
    run = run_warp(code, rows_of(code), launch, 1, 2, 10_000, literals)
    assert run.ended
    stores = [step for step in run.trace if code.lines[step["at"]].opcode == "STG"]
    element = 2 if name == "half" else 8 if name == "whole" else 4
    assert [step["units"] for step in stores if step["lanes"] == 32] == [element]  # 32 lanes beside each other


def test_a_look_up_reads_a_row_and_a_mask_that_is_set_lets_its_body_run(compiled):
    def opcodes(name):
        source, machine = compiled[name]
        (launch,) = source.launches.values()
        code = machine.kernels["main_kernel"]
        trace = run_warp(code, rows_of(code), launch, 1, 2, 10_000).trace
        return [(code.lines[step["at"]].opcode, int(step["lanes"]), int(step["units"])) for step in trace]

    assert [units for opcode, _, units in opcodes("look-up") if opcode == "LDG"] == [1, 4]  # an index, half a row
    assert ("LDG", 32, 4) in opcodes("mask") and any(
        opcode == "MUFU" and lanes == 32 for opcode, lanes, _ in opcodes("mask")
    )
