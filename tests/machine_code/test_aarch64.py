"""What single AArch64 instructions are taken for, and what real programs that LLVM compiles for Neoverse N1 execute."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from cdmpp.machine_code.cpu.operation import OPERATIONS
from tests.machine_code import decoding
from tests.machine_code.flows import flows

VECTORS = [
    (
        "fmla v0.4s, v1.4s, v2.s[0]",
        {"name": "fma", "width": 16, "scalar": False, "reads": ("v0", "v1", "v2"), "writes": ("v0",)},
    ),
    ("fmls v3.2s, v1.2s, v2.2s", {"name": "fma", "width": 16, "scalar": False, "reads": ("v1", "v2", "v3")}),
    ("fmla v0.8h, v1.8h, v2.h[7]", {"name": "fma", "width": 16}),
    ("fmla s0, s1, v2.s[3]", {"name": "fma", "scalar": True, "reads": ("v0", "v1", "v2")}),
    ("fmadd s0, s1, s2, s3", {"name": "fma", "scalar": True, "reads": ("v1", "v2", "v3"), "writes": ("v0",)}),
    ("fmadd d0, d1, d2, d3", {"name": "fma", "scalar": True}),
    ("fnmsub s0, s1, s2, s3", {"name": "fma", "reads": ("v1", "v2", "v3")}),
    ("fmul v0.4s, v1.4s, v2.4s", {"name": "fma", "reads": ("v1", "v2"), "loads": False, "address": None}),
    ("frsqrts v0.4s, v1.4s, v2.4s", {"name": "fma"}),
    ("fadd v0.4s, v1.4s, v2.4s", {"name": "fadd"}),
    ("fsub s0, s1, s2", {"name": "fadd", "scalar": True}),
    ("faddp s0, v0.2s", {"name": "fadd", "reads": ("v0",)}),
    ("frintm v0.4s, v1.4s", {"name": "fadd"}),
    ("fmax v0.4s, v1.4s, v2.4s", {"name": "fmax"}),
    ("fminnm s0, s1, s2", {"name": "fmax", "scalar": True}),
    ("fmaxnmv s0, v1.4s", {"name": "fmax", "width": 16}),
    ("fdiv v0.4s, v1.4s, v2.4s", {"name": "divide", "width": 16}),
    ("fsqrt s0, s1", {"name": "divide", "scalar": True}),
    ("frecpe v0.4s, v1.4s", {"name": "divide"}),
    ("scvtf s0, w1", {"name": "convert", "reads": ("x1",), "writes": ("v0",)}),
    ("ucvtf v0.4s, v1.4s", {"name": "convert"}),
    ("fcvtzs w8, s0", {"name": "convert", "reads": ("v0",), "writes": ("x8",)}),
    ("fcvtl v0.4s, v1.4h", {"name": "convert", "width": 16, "reads": ("v1",)}),
    ("fcvtn2 v0.8h, v1.4s", {"name": "convert", "reads": ("v0", "v1")}),
    ("fcmp s0, #0.0", {"name": "compare", "reads": ("v0",), "writes": ("flags",)}),
    ("fcmgt v0.4s, v1.4s, #0.0", {"name": "compare", "reads": ("v1",), "writes": ("v0",)}),
    ("cmgt v0.4s, v1.4s, v2.4s", {"name": "compare", "writes": ("v0",)}),
    ("fcsel s0, s1, s2, gt", {"name": "vector_int", "reads": ("flags", "v1", "v2"), "writes": ("v0",)}),
    ("bsl v0.16b, v1.16b, v2.16b", {"name": "vector_int", "reads": ("v0", "v1", "v2")}),
    ("fneg v0.4s, v1.4s", {"name": "vector_int", "reads": ("v1",)}),
    ("add v0.4s, v1.4s, v2.4s", {"name": "vector_int"}),
    ("orr v0.4s, #1, lsl #8", {"name": "vector_int", "reads": ("v0",)}),
    ("mul v0.4s, v1.4s, v2.4s", {"name": "multiply_low", "reads": ("v1", "v2")}),
    ("mla v0.4s, v1.4s, v2.4s", {"name": "multiply_low", "reads": ("v0", "v1", "v2")}),
    ("mul v0.8h, v1.8h, v2.8h", {"name": "vector_multiply"}),
    ("sdot v0.4s, v1.16b, v2.4b[0]", {"name": "vector_multiply", "reads": ("v0", "v1", "v2")}),
    ("smlal2 v0.4s, v1.8h, v2.8h", {"name": "vector_multiply", "reads": ("v0", "v1", "v2")}),
    ("smull2 v0.4s, v1.8h, v2.8h", {"name": "vector_multiply", "reads": ("v1", "v2")}),
    ("a_name_of_the_future v0.4s, v1.4s", {"name": "vector_int", "reads": ("v1",), "writes": ("v0",)}),
]
MOVES = [
    ("dup v0.4s, v1.s[0]", {"name": "light_shuffle", "reads": ("v1",), "writes": ("v0",)}),
    ("dup v0.4s, w8", {"name": "transfer", "reads": ("x8",)}),
    ("mov v0.s[1], v1.s[0]", {"name": "insert", "reads": ("v0", "v1"), "writes": ("v0",)}),
    ("ins v0.s[1], v1.s[0]", {"name": "insert", "reads": ("v0", "v1")}),
    ("mov v0.s[1], w8", {"name": "transfer", "reads": ("v0", "x8")}),
    ("mov w8, v0.s[1]", {"name": "transfer", "reads": ("v0",), "writes": ("x8",)}),
    ("umov w8, v0.b[15]", {"name": "transfer"}),
    ("mov s0, v1.s[1]", {"name": "light_shuffle", "reads": ("v1",)}),
    ("mov v0.16b, v1.16b", {"name": "move", "reads": ("v1",), "writes": ("v0",)}),
    ("fmov s0, s1", {"name": "move"}),
    ("fmov s0, w1", {"name": "transfer", "reads": ("x1",)}),
    ("fmov x1, d0", {"name": "transfer", "writes": ("x1",)}),
    ("fmov v0.d[1], x1", {"name": "transfer", "reads": ("v0", "x1")}),
    ("fmov s0, wzr", {"name": "transfer", "reads": ()}),
    ("fmov v0.4s, #1.00000000", {"name": "vector_int", "reads": (), "writes": ("v0",)}),
    ("movi v0.2d, #0000000000000000", {"name": "move", "reads": (), "writes": ("v0",)}),
    ("movi v0.4s, #63, lsl #24", {"name": "vector_int", "reads": ()}),
    ("ext v0.16b, v1.16b, v2.16b, #4", {"name": "light_shuffle", "reads": ("v1", "v2")}),
    ("zip1 v0.4s, v1.4s, v2.4s", {"name": "light_shuffle"}),
    ("uzp2 v0.4s, v1.4s, v2.4s", {"name": "light_shuffle"}),
    ("trn2 v0.4s, v1.4s, v2.4s", {"name": "light_shuffle", "reads": ("v1", "v2")}),
    ("rev64 v0.4s, v1.4s", {"name": "light_shuffle"}),
    ("tbl v0.16b, { v1.16b, v2.16b }, v3.16b", {"name": "light_shuffle", "reads": ("v1", "v2", "v3")}),
    ("tbx v0.16b, { v1.16b }, v3.16b", {"name": "light_shuffle", "reads": ("v0", "v1", "v3")}),
    ("ushll v0.8h, v1.8b, #0", {"name": "light_shuffle", "width": 16}),
    ("xtn2 v0.8h, v1.4s", {"name": "light_shuffle", "reads": ("v0", "v1")}),
]
MEMORY = [
    (
        "ldr q0, [x0]",
        {"name": "move", "loads": True, "stores": False, "width": 16, "address": 0, "writes": ("v0",)},
    ),
    ("ldr q0, [x0, #32]", {"address": 32, "address_registers": ("x0",), "reads": ("x0",), "spills": False}),
    ("ldur q0, [x0, #-16]", {"address": -16}),
    ("ldr q0, [x0, x1, lsl #4]", {"address": 0, "address_registers": ("x0", "x1")}),
    ("ldr s0, [x0, w1, sxtw #2]", {"address": 0, "reads": ("x0", "x1"), "scalar": True}),
    ("ldr q0, [x0], #16", {"address": 0, "reads": ("x0",), "writes": ("v0", "x0"), "width": 16}),
    ("ldr q0, [x0, #16]!", {"address": 16, "writes": ("v0", "x0")}),
    ("ldr q0, [x8, :lo12:.LCPI0_0]", {"address": 0, "reads": ("x8",)}),
    ("ldr d0, .LCPI0_0", {"loads": True, "address": 0, "reads": (), "writes": ("v0",)}),
    ("ldr d0, [x0]", {"width": 16, "moved": 8, "scalar": False}),
    ("ldp q0, q1, [x0, #64]", {"width": 16, "moved": 32, "writes": ("v0", "v1"), "reads": ("x0",), "scalar": False}),
    ("ldp d8, d9, [sp, #16]", {"moved": 16, "spills": True, "address": 16}),
    ("ldp s0, s1, [x0], #8", {"moved": 8, "scalar": False, "writes": ("v0", "v1", "x0")}),
    ("ldp x1, x2, [x0]", {"name": "int_move", "width": 8, "moved": 16, "writes": ("x1", "x2")}),
    ("ldp w1, w2, [x0]", {"name": "int_move", "moved": 8}),
    ("stp x29, x30, [sp, #-16]!", {"stores": True, "loads": False, "writes": ("sp",), "reads": ("sp", "x29", "x30")}),
    ("stp q0, q1, [x0], #32", {"name": "move", "stores": True, "moved": 32, "writes": ("x0",)}),
    ("str s0, [x0, #4]", {"name": "move", "stores": True, "scalar": True, "reads": ("v0", "x0"), "writes": ()}),
    ("str wzr, [x0]", {"name": "int_move", "stores": True, "reads": ("x0",)}),
    ("stur q0, [sp, #-16]", {"spills": True, "stores": True}),
    ("ldrsw x1, [x0, x2, lsl #2]", {"name": "int_move", "loads": True, "moved": 4, "writes": ("x1",)}),
    ("ldrb w1, [x0], #1", {"name": "int_move", "moved": 1, "writes": ("x0", "x1")}),
    ("ld1 { v0.4s, v1.4s }, [x0], #32", {"name": "move", "moved": 32, "writes": ("v0", "v1", "x0")}),
    ("ld1 { v0.4s }, [x0], x2", {"address": 0, "reads": ("x0", "x2"), "writes": ("v0", "x0")}),
    ("ld1 { v0.s }[1], [x0]", {"name": "insert", "loads": True, "moved": 4, "reads": ("v0", "x0")}),
    ("ld1r { v0.4s }, [x0]", {"name": "light_shuffle", "scalar": True, "moved": 4, "reads": ("x0",)}),
    ("ld3 { v0.4s, v1.4s, v2.4s }, [x0]", {"name": "light_shuffle", "moved": 48, "writes": ("v0", "v1", "v2")}),
    ("st1 { v0.s }[2], [x0]", {"name": "insert", "stores": True, "scalar": True, "writes": ()}),
    ("st1 { v0.4s, v1.4s }, [x0]", {"name": "move", "moved": 32, "reads": ("v0", "v1", "x0")}),
    ("st2 { v0.4s, v1.4s }, [x0], #32", {"name": "light_shuffle", "stores": True, "writes": ("x0",)}),
    ("prfm pldl1keep, [x0, #64]", {"name": "int", "loads": True, "writes": ()}),
]
INTEGERS = [
    ("add x0, x1, x2, lsl #2", {"name": "int", "reads": ("x1", "x2"), "writes": ("x0",), "width": 8}),
    ("add sp, sp, #16", {"reads": ("sp",), "writes": ("sp",), "spills": False, "address": None}),
    ("add x8, x8, :lo12:weights", {"reads": ("x8",)}),
    ("subs w8, w8, #1", {"reads": ("x8",), "writes": ("flags", "x8")}),
    ("cmp x8, #512", {"name": "int", "reads": ("x8",), "writes": ("flags",)}),
    ("ccmp w0, #4, #0, ne", {"reads": ("flags", "x0"), "writes": ("flags",)}),
    ("csel x0, x1, xzr, eq", {"name": "int", "reads": ("flags", "x1"), "writes": ("x0",)}),
    ("cset w0, lo", {"reads": ("flags",), "writes": ("x0",)}),
    ("bic w0, w1, w2", {"name": "int", "writes": ("x0",)}),
    ("bfi w0, w1, #3, #4", {"name": "int", "reads": ("x0", "x1")}),
    ("movk w0, #1, lsl #16", {"name": "int", "reads": ("x0",), "writes": ("x0",)}),
    ("mov w0, #64", {"name": "int_move", "reads": (), "writes": ("x0",)}),
    ("mov x0, x1", {"name": "int_move", "reads": ("x1",)}),
    ("mov w0, wzr", {"name": "int_move", "reads": ()}),
    ("adrp x8, .LCPI0_0", {"name": "int", "reads": (), "writes": ("x8",), "address": None}),
    ("madd x0, x1, x2, x3", {"name": "int_multiply", "reads": ("x1", "x2", "x3")}),
    ("mul w0, w1, w2", {"name": "int_multiply"}),
    ("umulh x0, x1, x2", {"name": "int_multiply"}),
    ("smaddl x0, w1, w2, x3", {"name": "int_multiply"}),
    ("sdiv w0, w1, w2", {"name": "int_divide"}),
    ("udiv x0, x1, x2", {"name": "int_divide"}),
    ("b .LBB0_2", {"name": "branch", "reads": (), "writes": ()}),
    ("b.lo .LBB0_2", {"name": "branch", "reads": ("flags",), "writes": ()}),
    ("cbnz x8, .LBB0_2", {"name": "branch", "reads": ("x8",), "writes": ()}),
    ("tbz w8, #31, .LBB0_2", {"name": "branch", "reads": ("x8",), "writes": ()}),
    ("br x8", {"name": "branch", "reads": ("x8",)}),
    ("ret", {"name": "branch", "reads": ("x30",), "writes": ()}),
    ("bl expf", {"name": "call", "reads": (), "writes": ("x30",)}),
    ("blr x8", {"name": "call", "reads": ("x8",), "writes": ("x30",)}),
    ("nop", {"name": "int", "reads": (), "writes": ()}),
]

SUMS = [
    ("ldr q0, [x0, x1, lsl #4]", (("x0", 1), ("x1", 16)), None),
    ("ldr s0, [x0, w1, sxtw #2]", (("x0", 1), ("x1", 4)), None),
    ("ldr q0, [x0, x1]", (("x0", 1), ("x1", 1)), None),
    ("ldur q0, [x0, #-16]", (("x0", 1),), None),
    ("ldr q0, [x8, :lo12:.LCPI0_0]", (("[x8 :lo12:.LCPI0_0", 1),), None),
    ("str q0, [sp, #32]", (("sp", 1),), None),
    ("ldr q0, [x0], #16", (("x0", 1),), ("x0", (("x0", 1),), 16)),
    ("stp q0, q1, [x0, #-32]!", (("x0", 1),), ("x0", (("x0", 1),), -32)),
    ("ld1 { v0.4s }, [x0], x2", (("x0", 1),), ("x0", (("x0", 1), ("x2", 1)), 0)),
    ("ldr x1, [x0], #8", (("x0", 1),), None),  # x1 is unknown then, which one sum cannot say
    ("add x0, x1, #16", (), ("x0", (("x1", 1),), 16)),
    ("add x0, x1, #1, lsl #12", (), ("x0", (("x1", 1),), 4096)),
    ("add x0, x1, x2, lsl #2", (), ("x0", (("x1", 1), ("x2", 4)), 0)),
    ("add x0, x1, w2, sxtw #2", (), ("x0", (("x1", 1), ("x2", 4)), 0)),
    ("subs x8, x8, #1", (), ("x8", (("x8", 1),), -1)),
    ("sub sp, sp, #0x40", (), ("sp", (("sp", 1),), -64)),
    ("sub x0, x1, x2", (), ("x0", (("x1", 1), ("x2", -1)), 0)),
    ("add x8, x8, :lo12:weights", (), None),
    ("add x8, x9, x10, lsr #2", (), None),
    ("mov x0, x1", (), ("x0", (("x1", 1),), 0)),
    ("mov w0, #-64", (), ("x0", (), -64)),
    ("mov w0, wzr", (), ("x0", (), 0)),
    ("mov w0, v1.s[0]", (), None),
    ("lsl x0, x1, #3", (), ("x0", (("x1", 8),), 0)),
    ("ubfiz x0, x1, #2, #32", (), ("x0", (("x1", 4),), 0)),
    ("mul x0, x1, x2", (), None),
    ("add v0.4s, v1.4s, v2.4s", (), None),
]


def decode(line: str) -> decoding.Operation:
    return decoding.decode(line, arm=True)


@pytest.mark.parametrize(("line", "expected"), VECTORS + MOVES + MEMORY + INTEGERS)
def test_decoding(line: str, expected: dict[str, object]) -> None:
    found = decode(line)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.name in OPERATIONS
    assert (found.lanes, found.masked) == (0, False)
    assert (found.address is not None) == (found.loads or found.stores)


def test_parts_of_a_register_are_one() -> None:
    assert {decode(f"mov {letter}9, {letter}9").reads for letter in "xw"} == {("x9",)}
    assert {decode(f"fadd {letter}31, {letter}31, {letter}31").writes for letter in "hsd"} == {("v31",)}
    assert decode("str q31, [sp]").reads == ("sp", "v31")


@pytest.mark.parametrize(("line", "terms", "assigns"), SUMS)
def test_addresses_are_sums_of_registers(line: str, terms: tuple, assigns: tuple | None) -> None:
    assert (decode(line).terms, decode(line).assigns) == (terms, assigns)


def lanes_of(line: str) -> int:
    """Floats of 4 bytes that the result has."""
    found = re.match(r"\w+ v\d+\.(\d)s", line)
    return int(found[1]) if found else 1


def executed(module) -> Counter[str]:
    """How often each amount occurs in a run of a program that is compiled for a Neoverse N1 core."""
    tvm = pytest.importorskip("tvm")
    from cdmpp.machine_code.cpu.compile import compiled
    from cdmpp.programs.task import Program

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"})
    code = compiled(Program(module, target))
    amounts: Counter[str] = Counter()
    for flow in flows(code.llvm_ir, code.assembly)[1].values():
        amounts["unknown"] += flow.unknown
        for block, runs in flow.runs.items():
            for line in flow.lines[block]:
                operation = decode(line)
                amounts[operation.name] += runs
                amounts[f"{operation.name} lanes"] += runs * lanes_of(line)
                amounts["expf"] += runs * (line == "bl expf")
                if operation.address is not None:
                    way = "loaded" if operation.loads else "stored"
                    amounts[f"spills {way}" if operation.spills else way] += runs * operation.moved
    return amounts


def test_a_matrix_product_multiplies_as_often_as_it_should() -> None:
    """64 x 64 x 64 in blocks of eight rows and 16 columns, whose sums are written once."""
    pytest.importorskip("tvm")
    from tests.ast.programs import matmul_cpu

    found = executed(matmul_cpu()[0])
    assert found["unknown"] == 0
    assert found["fma lanes"] == pytest.approx(64**3, rel=0.01)
    assert found["fma lanes"] / found["fma"] == pytest.approx(4, rel=0.01)
    assert found["stored"] == pytest.approx(4 * 64**2, rel=0.01)
    assert found["loaded"] == pytest.approx(4 * (8 * 4) * 64 * (8 + 16), rel=0.01)
    assert found["divide"] == found["fadd"] == found["insert"] == 0


def test_softmax_divides_and_takes_exponentials_of_every_element() -> None:
    """32 x 100: the input and the exponentials are read twice."""
    pytest.importorskip("tvm")
    from tests.ast.programs import softmax_cpu

    found = executed(softmax_cpu()[0])
    assert found["unknown"] > 0  # checks around each call of expf are branches, which the IR has as selects
    assert found["expf"] == pytest.approx(3200, rel=0.01)
    assert found["divide lanes"] == pytest.approx(3200, rel=0.01)
    assert found["fadd lanes"] == pytest.approx(2 * 3200, rel=0.01)
    assert found["stored"] == pytest.approx(2 * 4 * 3200, rel=0.05)
    assert 1.2 * 4 * 4 * 3200 >= found["loaded"] >= 4 * 4 * 3200


def test_an_elementwise_program_moves_every_element_once() -> None:
    """relu(x * y + z) of 1000 rows of 64, rows vectorised whole."""
    pytest.importorskip("tvm")
    import tvm
    from tvm import s_tir, te, tirx

    x, y, z = (te.placeholder((1000, 64), name=name) for name in "xyz")
    out = te.compute((1000, 64), lambda i, j: tirx.max(x[i, j] * y[i, j] + z[i, j], tirx.const(0.0, "float32")))
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y, z, out])}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root", func_name="main"))
    _, j = schedule.get_loops(block)
    schedule.vectorize(j)
    found = executed(schedule.mod)
    assert found["unknown"] == 0
    elements = 64000
    assert found["fma lanes"] == pytest.approx(elements, rel=0.01)
    assert found["stored"] == pytest.approx(4 * elements, rel=0.01)
    assert found["loaded"] == pytest.approx(3 * 4 * elements, rel=0.01)
    assert found["fmax lanes"] + found["compare lanes"] == pytest.approx(elements, rel=0.01)
