"""Real programs through TVM and LLVM: what is counted, and for which targets."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, CODE_WIDTH
from cdmpp.machine_code.cpu.code_vector import code_vector
from cdmpp.machine_code.cpu.compile import can_compile, can_have_code, can_have_gpu_code, compiled
from cdmpp.predict.compiled import read_programs
from cdmpp.predict.program_batch import ReadOptions
from cdmpp.programs.task import Program
from tests.ast.programs import matmul_cpu, matmul_cuda

tvm = pytest.importorskip("tvm")
te = pytest.importorskip("tvm.te")


@pytest.fixture(scope="module")
def program():
    return Program(*matmul_cpu())


def test_every_multiply_add_is_counted(program):
    vector = code_vector(*compiled(program), get_core("ice_lake"))
    amounts = dict(zip(CODE_NAMES, 2.0 ** vector.astype(np.float64) - 1, strict=True))
    assert amounts["n_fused_lanes"] == pytest.approx(64**3, rel=0.01)
    assert amounts["unknown_loops"] == pytest.approx(0, abs=1e-6)
    assert amounts["machine_unmatched_loops"] == pytest.approx(0, abs=1e-6)
    lanes = amounts["n_fused_lanes"] / amounts["machine_is_fma"]
    assert lanes in (
        pytest.approx(1, rel=0.1),
        pytest.approx(4, rel=0.1),
        pytest.approx(8, rel=0.1),
        pytest.approx(16, rel=0.1),
    )
    # Two vector units: the core cannot be faster than that, and an L1-resident product should not be ten times slower.
    assert amounts["machine_is_fma"] / 2 <= amounts["machine_cycles"] * 1.001 < 20 * amounts["machine_is_fma"]


def test_code_is_read_of_x86_cpus_and_described_gpus(program):
    described = matmul_cuda()[1]
    assert can_compile(program.target) and can_compile(described)
    assert can_have_gpu_code({"kind": "cuda", "arch": "sm_80"}) and not can_have_gpu_code(
        {"kind": "cuda", "arch": "sm_61"}
    )
    assert not can_have_gpu_code({"kind": "rocm", "mcpu": "gfx90a"}) and not can_have_code(
        {"kind": "cuda", "arch": "sm_80"}
    )
    assert not can_compile(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}))


def test_asts_carry_it_only_when_asked(program):
    device = devices.get("xeon-icelake")
    assert read_programs([program], ReadOptions(device)).asts.codes is None
    codes = read_programs([program], ReadOptions(device, compiled=True)).asts.codes
    assert codes is not None and codes.shape == (1, CODE_WIDTH) and np.isfinite(codes).all()


def _matmul(n: int, order: str, noalias: bool) -> tvm.IRModule:
    """A plain product as TE gives it, in one of three loop orders."""
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    function = function.with_attr("tirx.noalias", True) if noalias else function.without_attr("tirx.noalias")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    i, j, k = schedule.get_loops(schedule.get_sblock("C"))
    if order == "reordered":
        schedule.reorder(i, k, j)
    if order == "vectorized":
        outer, inner = schedule.split(j, [None, 16])
        schedule.reorder(i, outer, k, inner)
        schedule.vectorize(inner)
        schedule.parallel(i)
    return schedule.mod


@pytest.mark.parametrize("noalias", [True, False])
@pytest.mark.parametrize("order", ["unscheduled", "reordered", "vectorized"])
def test_the_work_of_a_plain_program_is_counted_wherever_llvm_puts_it(order, noalias):
    """LLVM takes the first turn out of plain loops and unrolls the rest; without ``noalias`` it moves them into the
    wrapper that checks the arguments."""
    n, target = 128, tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server", "num-cores": 1})
    row = code_vector(*compiled(Program(_matmul(n, order, noalias), target)), get_core("ice_lake"))
    vector = dict(zip(CODE_NAMES, row, strict=True))
    assert 2 ** vector["n_fused_lanes"] - 1 == pytest.approx(n**3, rel=0.01)
    assert vector["unknown_loops"] == 0
    # Four cycles each where one waits for the other, two vectors of sixteen in a cycle at best.
    least = 4 * n**3 if order == "unscheduled" else n**3 / 32
    assert 0.95 * least <= 2 ** vector["machine_cycles"] <= 10 * least


def test_the_checks_of_arguments_that_are_left_out_change_nothing():
    program = Program(_matmul(128, "vectorized", True), tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server"}))
    whole = tvm.compile(program.module, target=program.target).mod
    texts = str(whole.inspect_source("ll")), str(whole.inspect_source("asm"))
    lean = compiled(program)
    assert len(lean.assembly) < 0.8 * len(texts[1])
    core = get_core("ice_lake")
    np.testing.assert_array_equal(code_vector(*lean, core), code_vector(*texts, core))
