"""The code vector of IR whose counts can be worked out by hand, and of real programs."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.devices.cores import get_core
from cdmpp.errors import DataError
from cdmpp.features import names
from cdmpp.machine_code.cpu.code_features import CLASSES, CODE_NAMES, CODE_WIDTH
from cdmpp.machine_code.cpu.code_vector import code_vector, rounded
from cdmpp.machine_code.cpu.native import native_amounts
from tests.machine_code.flows import ir_flow

NEST = """
define internal fastcc i32 @main_compute_(ptr noalias align 64 %a, ptr noalias align 64 %b) unnamed_addr {
entry:
  br label %for_body

for_body:                                         ; preds = %for_end, %entry
  %i = phi i64 [ 0, %entry ], [ %next_i, %for_end ]
  br label %for_body2

for_body2:                                        ; preds = %for_body2, %for_body
  %j = phi i64 [ 0, %for_body ], [ %next_j, %for_body2 ]
  %sum = phi <16 x float> [ zeroinitializer, %for_body ], [ %added, %for_body2 ]
  %address = getelementptr inbounds float, ptr %a, i64 %j
  %x = load <16 x float>, ptr %address, align 64, !tbaa !3
  %added = tail call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %x, <16 x float> %x, <16 x float> %sum)
  %next_j = add nuw nsw i64 %j, 16
  %done = icmp samesign ult i64 %j, 112
  br i1 %done, label %for_body2, label %for_end

for_end:                                          ; preds = %for_body2
  store <16 x float> %added, ptr %b, align 64
  %next_i = add nuw nsw i64 %i, 1
  %stop = icmp eq i64 %next_i, 10
  br i1 %stop, label %end, label %for_body

end:                                              ; preds = %for_end
  ret i32 0
}
"""

MACHINE_CODE = """
main_compute_:
.Lfunc_begin3:
\txorl\t%eax, %eax
\t.p2align\t4
.LBB3_1:
\tvxorps\t%xmm0, %xmm0, %xmm0
\txorl\t%ecx, %ecx
.LBB3_2:
\tvmovaps\t(%rdi,%rcx,4), %zmm1
.Ltmp12:
\tvfmadd231ps\t%zmm1, %zmm1, %zmm0
\taddq\t$16, %rcx
\tcmpq\t$128, %rcx
\tjne\t.LBB3_2
\tvmovaps\t%zmm0, (%rsi)
\tincq\t%rax
\tcmpq\t$10, %rax
\tjne\t.LBB3_1
\txorl\t%eax, %eax
\tvzeroupper
\tretq
.Lfunc_end3:
"""


def vector_of(llvm_ir: str, core: str = "ice_lake") -> np.ndarray:
    return code_vector(llvm_ir, MACHINE_CODE, get_core(core))


def amount(vector: np.ndarray, name: str) -> float:
    return float(2.0 ** vector[CODE_NAMES.index(name)] - 1.0)


def test_trip_counts_and_frequencies() -> None:
    flow = ir_flow(NEST)
    assert {header: flow.trips(header) for header in flow.entries} == {"for_body": 10, "for_body2": 8}
    assert flow.runs == {"entry": 1, "for_body": 10, "for_body2": 80, "for_end": 10, "end": 1}


def test_counts_are_instructions_times_runs() -> None:
    vector = vector_of(NEST)
    assert vector.shape == (CODE_WIDTH,) and vector.dtype == np.float32 and np.isfinite(vector).all()
    expected = {
        "n_float_16": 80,
        "n_fused_lanes": 80 * 16,
        "n_load_16": 80,
        "n_load_bytes": 80 * 64,
        "n_store_16": 10,
        "n_store_bytes": 10 * 64,
        "n_call": 0,
        "loop_runs": 90,
        "loop_entries": 11,
        "unknown_loops": 0,
        "hottest_trips": 8,
        "hottest_instructions": 8,
    }
    assert {name: amount(vector, name) for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_rounding_keeps_a_thousandth_of_an_amount() -> None:
    amounts = 10.0 ** np.linspace(0, 12, 500)
    kept = rounded(np.log2(1 + amounts))
    np.testing.assert_allclose(np.exp2(kept) - 1, amounts, rtol=1e-3)
    np.testing.assert_array_equal(rounded(kept), kept)
    assert rounded(np.zeros(3)).tolist() == [0, 0, 0]
    # Small whole numbers, and what is an exact power of two less one, stay what they are.
    np.testing.assert_array_equal(rounded(np.arange(20.0)), np.arange(20.0))


def test_a_sum_in_one_register_is_bound_by_its_chain() -> None:
    vector = vector_of(NEST)
    assert amount(vector, "cycles_chain") == pytest.approx(80 * 4, rel=1e-3)
    assert amount(vector, "cycles") >= 80 * 4 * 0.999
    twice = NEST.replace("  %next_j", "  %more = fadd <16 x float> %added, %x\n  %next_j")
    assert amount(vector_of(twice), "cycles_chain") == pytest.approx(80 * 8, rel=1e-3)
    second = "%other = phi <16 x float> [ zeroinitializer, %for_body ], [ %more, %for_body2 ]\n  "
    assert amount(vector_of(twice.replace("%sum = phi", second + "%sum = phi")), "cycles_chain") == pytest.approx(
        320, rel=1e-3
    )


def test_an_unknown_limit_is_said() -> None:
    vector = vector_of(
        NEST.replace("i64 %next_i, 10", "i64 %next_i, %limit").replace("ptr noalias align 64 %b", "i64 %limit")
    )
    assert amount(vector, "unknown_loops") == pytest.approx(1, rel=1e-3)
    assert amount(vector, "n_float_16") in (pytest.approx(8, rel=1e-3), pytest.approx(16, rel=1e-3))
    assert amount(vector, "machine_unmatched_loops") == pytest.approx(0, abs=1e-6)


def test_machine_code_is_counted_by_what_it_does() -> None:
    vector = vector_of(NEST)
    expected = {
        "machine_is_fma": 80,
        "machine_vector_floats": 80,
        "machine_wide_loads": 80,
        "machine_stores": 10,
        "machine_wide_stores": 10,
        "machine_scalar_floats": 0,
        "machine_spill_loads": 0,
        "machine_is_branch": 91,
        "machine_loop_runs": 80,
        "machine_loop_entries": 10,
        "machine_text": 15,
        "machine_unmatched_loops": 0,
        "hottest_machine_trips": 8,
        "hottest_machine_instructions": 5,
    }
    assert {name: amount(vector, name) for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_the_core_waits_for_the_sum_but_a_new_one_starts_early() -> None:
    vector = vector_of(NEST)
    assert amount(vector, "hottest_machine_cycles") == pytest.approx(4, rel=1e-3)
    assert amount(vector, "machine_cycles") == pytest.approx(80 * 4, rel=0.2)
    assert amount(vector, "machine_latency_cycles") > 200
    # Eight iterations fit into the window many times over: then the width of the core decides.
    assert amount(vector, "machine_overlap_cycles") > 150


def test_each_core_takes_its_own_cycles() -> None:
    """Loads and multiply-adds of 512 bits keep the units of Zen 4 for two cycles, those of Zen 5 for one."""
    loads = {name: amount(vector_of(NEST, name), "machine_load_cycles") for name in ("ice_lake", "zen4", "zen5")}
    assert loads == pytest.approx({"ice_lake": 40, "zen4": 80, "zen5": 40}, rel=1e-2)
    floats = {name: amount(vector_of(NEST, name), "machine_float_cycles") for name in ("ice_lake", "zen4", "zen5")}
    assert floats == pytest.approx({"ice_lake": 40, "zen4": 80, "zen5": 40}, rel=1e-2)
    issue = {name: amount(vector_of(NEST, name), "machine_issue_cycles") for name in ("ice_lake", "zen5")}
    assert issue["ice_lake"] == pytest.approx(8 / 5 * issue["zen5"], rel=1e-2)


def test_code_of_another_processor_is_refused() -> None:
    with pytest.raises(DataError, match="no machine code of main_compute_ that can be read"):
        code_vector(NEST, "main_compute_:\n\tvfmacc.vv v0, v8, v16\n\tret\n", get_core("ice_lake"))


@pytest.mark.parametrize("strange", ["\u00e9", "\x0c"])
def test_a_text_that_no_compiler_writes_is_refused(strange: str) -> None:
    with pytest.raises(DataError, match="not expected to hold"):
        code_vector(NEST, MACHINE_CODE.replace("\tretq", f"\tretq # {strange}"), get_core("ice_lake"))


def test_a_module_that_computes_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="computes"):
        vector_of(NEST.replace("@main_compute_", "@helper"))


def test_the_wrapper_that_checks_arguments_does_not_count() -> None:
    wrapper = NEST.replace("@main_compute_", "@__tvm_ffi_main")
    np.testing.assert_array_equal(vector_of(wrapper + NEST), vector_of(NEST))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%1 = fmul fast float %x, %y", {"float_1": 1}),
        ("%1 = fadd <64 x float> %x, %y", {"float_16": 4}),
        ("%1 = fdiv <8 x float> %x, %y", {"divide_8": 1}),
        ("%1 = load i32, ptr %p, align 4", {"load_int": 1, "load_bytes": 4}),
        ("store float %x, ptr %p, align 4", {"store_1": 1, "store_bytes": 4}),
        (
            "call void @llvm.masked.store.v16f32.p0(<16 x float> %x, ptr %p, i32 4, <16 x i1> %m)",
            {"store_16": 1, "masked": 1, "store_bytes": 64},
        ),
        ("%1 = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> %p, i32 4, <8 x i1> %m)", {"gather": 8}),
        ("%1 = shufflevector <16 x float> %x, <16 x float> poison, <16 x i32> zeroinitializer", {"broadcast": 1}),
        (
            "%1 = call <20 x float> @llvm.fmuladd.v20f32(<20 x float> %x, <20 x float> %y, <20 x float> %z)",
            {"float_16": 2, "fused_lanes": 20, "odd_vector": 2, "odd_wide_lanes": 20},
        ),
        ("%1 = fadd <6 x float> %x, %y", {"float_8": 1, "odd_vector": 1}),
        (
            "%1 = shufflevector <482 x float> %x, <482 x float> poison, <4 x i32> <i32 0, i32 160, i32 320, i32 480>",
            {"shuffle": 1},
        ),
        (
            "%1 = shufflevector <2 x float> %x, <2 x float> poison, <40 x i32> <i32 0, "
            + "i32 poison, " * 38
            + "i32 1>",
            {"shuffle": 2},
        ),
        (
            "%1 = call <40 x float> @llvm.masked.load.v40f32.p0(ptr align 4 %p, <40 x i1> <i1 true, "
            + "i1 false, " * 38
            + "i1 true>, <40 x float> poison)",
            {"load_16": 2, "masked": 2, "load_bytes": 8},
        ),
        (
            "call void @llvm.masked.store.v16f32.p0(<16 x float> %wide.masked.load, ptr align 4 %p, <16 x i1> %mask)",
            {"store_16": 1, "masked": 1, "store_bytes": 64},
        ),
        ("%1 = fadd <24 x float> %wide.masked.load, %x", {"float_16": 2, "odd_vector": 2, "odd_wide_lanes": 24}),
        ("%1 = call float @expf(float %x)", {"call": 1}),
        ("%1 = phi float [ 0.0, %entry ], [ %2, %for_body ]", {}),
        ("%1 = sdiv i32 %x, %y", {"int_divide": 1}),
    ],
)
def test_classes(line: str, expected: dict[str, float]) -> None:
    text = "define i32 @main_compute_(ptr %p) {\nentry:\n  " + line + "\n  ret i32 0\n}\n"
    amounts = native_amounts(text, "main_compute_:\n\txorl\t%eax, %eax\n\tretq\n", get_core("ice_lake"))
    found = {one: amounts[f"n_{one}"] for one in names(CLASSES) if amounts[f"n_{one}"]}
    assert found == expected
