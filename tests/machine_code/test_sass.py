"""GPU machine code: listings, rows, one warp executed, warps in time.

``sass/`` holds listings of nvcc 13.0 for schedules that TVM sampled of 512 x 512 matrix products, a 3x3 convolution and
an elementwise sum.
"""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp import devices
from cdmpp.devices.gpu_core import described_archs, gpu_core_of, read_gpu_core
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.resident import Residents, cache_passes, occupancy, run_residents
from cdmpp.machine_code.gpu.sass import Control, SassKernel, SassLine, listed, parse_sass
from cdmpp.machine_code.gpu.sass_fields import CLASSES, FIELDS
from cdmpp.machine_code.gpu.sass_rows import rows_of
from cdmpp.machine_code.gpu.warp import run_warp
from cdmpp.platform.paths import conf_folder
from tests.machine_code.sass_pieces import LAUNCHES, LISTINGS, NAMES, ONE_WARP_A_BLOCK, kernel, written

SETTINGS = settings(max_examples=150, deadline=None)


def executed(made, launch=None, block=1, limit=1000):
    """Its trace."""
    return run_warp(made, rows_of(made), launch or ONE_WARP_A_BLOCK, block, 0, limit).trace


def counts(made, trace, name):
    return int((rows_of(made)[trace["at"], FIELDS.index("counted")] == CLASSES.index(name)).sum())


def test_a_listing_tells_kernels_with_resources_and_control_bits():
    made = kernel("matmul_sm_80")
    assert (made.name, made.arch, made.registers, made.stack_bytes, made.shared_bytes) == (
        "main_kernel",
        80,
        106,
        0,
        33792,
    )
    first, second = made.lines[:2]
    assert (first.name, first.operands) == ("MOV", ("R1", "c[0x0][0x28]"))
    assert first.control == Control(stall=2, yields=False, write_barrier=7, read_barrier=7, waits=0)
    assert second.control.write_barrier == 0  # what is read here is waited for later
    assert made.lines[-1].name in ("BRA", "NOP")


@pytest.mark.parametrize("text", ["", "no listing", "\tcode for sm_80\n\t\tFunction : f\n"])
def test_what_is_no_listing_is_refused(text):
    with pytest.raises(DataError, match="listing"):
        parse_sass(text)


@pytest.mark.parametrize(
    "text", ["HMMA.16816.F32 R0, R4, R8, R0", "DADD R0, R2, R4", "IADD3.SAT R0, R1, R2, RZ", "ATOMG R0, [R2]"]
)
def test_an_unknown_instruction_is_named(text):
    with pytest.raises(DataError, match=text.split()[0].replace(".", r"\.") + ".*sm_80 is not known"):
        rows_of(written(text))


def test_an_unknown_architecture_is_named():
    with pytest.raises(DataError, match="sm_61 is not known; known are sm_75, sm_80"):
        executed(written("EXIT", arch=61))
    with pytest.raises(CdmppError, match="no core of sm_61"):
        gpu_core_of(61)


@pytest.mark.parametrize(("name", "operations"), [("matmul_sm_80", 512**3), ("matmul_sm_100", 512**3)])
def test_executed_multiply_adds_are_those_of_the_program(name, operations):
    made, launch = kernel(name), LAUNCHES["matmul"]
    done = run_warp(made, rows_of(made), launch, 7, 0, 300_000)
    assert done.ended
    of_warp = rows_of(made)[done.trace["at"], FIELDS.index("counted")] == CLASSES.index("ffma")
    assert done.trace["lanes"][of_warp].sum() * launch.warps * launch.blocks == operations


def test_a_constant_of_the_kernel_decides_addresses():
    """Its convolution divides by numbers in constant bank 2: without them no address is known."""
    made, launch = kernel("conv2d_sm_80"), LAUNCHES["conv2d"]
    rows = rows_of(made)
    with pytest.raises(DataError, match="depends on data"):
        run_warp(made, rows, launch, 0, 0, 3000)


def test_a_loop_runs_as_often_as_its_counter_says():
    made = written(
        "MOV R0, RZ", "FFMA R4, R4, R4, R4", "IADD3 R0, R0, 0x1, RZ", "ISETP.LT.AND P0, PT, R0, 0x7, PT",
        "@P0@ BRA 0x10", "EXIT",
    )  # fmt: skip
    assert counts(made, executed(made), "ffma") == 7


def test_lanes_that_part_meet_again():
    made = written(
        "S2R R0, SR_TID.X", "ISETP.LT.AND P0, PT, R0, 0x8, PT", "@P0@ BRA 0x50", "FADD R1, R1, R1", "BRA 0x60",
        "FMUL R1, R1, R1", "FFMA R1, R1, R1, R1", "EXIT",
    )  # fmt: skip
    trace = executed(made)
    lanes = {made.lines[at].opcode: int(n) for at, n in zip(trace["at"], trace["lanes"], strict=True)}
    assert (lanes["FADD"], lanes["FMUL"], lanes["FFMA"]) == (24, 8, 32)


def test_a_branch_on_data_takes_the_way_that_calls_no_helper():
    """Square roots call one for denormals; where no side calls there is no telling."""
    slow = written(
        "LDG.E R0, [R2.64]", "ISETP.GT.U32.AND P0, PT, R0, 0x727fffff, PT", "@!P0@ BRA 0x60", "MOV R4, 0x70",
        "CALL.REL.NOINC 0x80", "BRA 0x70", "FMUL R0, R0, R0", "EXIT", "RET.REL.NODEC R4 0x0",
    )  # fmt: skip
    assert [slow.lines[at].opcode for at in executed(slow)["at"]] == ["LDG", "ISETP", "BRA", "FMUL", "EXIT"]
    unsure = written("LDG.E R0, [R2.64]", "FSETP.GT.AND P0, PT, R0, RZ, PT", "@P0@ BRA 0x40", "EXIT", "EXIT")
    with pytest.raises(DataError, match="instruction 2 branches on data"):
        executed(unsure)


def test_an_address_from_computed_data_is_refused():
    made = ("LDG.E R0, [R2.64]", "F2I.TRUNC.NTZ R1, R0", "IMAD.WIDE R4, R1, 0x4, R2", "LDG.E R5, [R4.64]", "EXIT")
    with pytest.raises(DataError, match="address of instruction 3 depends on data"):
        executed(written(*made))


def test_an_index_is_taken_for_zero_and_a_flag_for_one_but_no_float():
    look_up = written("LDG.E R0, [R2.64]", "IMAD.WIDE R4, R0, 0x4, R2", "LDG.E R5, [R4.64]", "EXIT")
    assert executed(look_up)["units"].tolist()[2] == 1  # all lanes look up one row
    flag = written("LDG.E.U8 R0, [R2.64]", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@!P0@ BRA 0x40", "EXIT", "EXIT")
    assert executed(flag)["at"].tolist() == [0, 1, 2, 3]
    bits = written("LDG.E R0, [R2.64]", "ISETP.GT.AND P0, PT, R0, RZ, PT", "FADD R1, R0, R0", "@P0@ BRA 0x50", "EXIT",
                   "EXIT")  # fmt: skip
    with pytest.raises(DataError, match="instruction 3 branches on data"):
        executed(bits)


def test_integers_survive_on_the_stack():
    made = written("S2R R0, SR_TID.X", "STL [R1+0x4], R0", "LDL R6, [R1+0x4]", "SHF.L.U32 R6, R6, 0x7, RZ",
                   "LDS R7, [R6]", "EXIT", stack_bytes=8)  # fmt: skip
    assert executed(made)["units"][4] == 32  # all lanes in one bank: each lane's number came back
    with pytest.raises(DataError, match="leaves the stack of 8 bytes"):
        executed(written("STL [R1+0x40], R0", "EXIT", stack_bytes=8))


def test_sectors_are_counted_once_each_and_fresh_ones_apart():
    made = written("S2R R0, SR_TID.X", "IMAD.WIDE R2, R0, 0x4, c[0x0][0x160]", "LDG.E R4, [R2.64]", "LDG.E R5, [R2.64]",
                   "LDG.E R6, [R2.64+0x40]", "EXIT")  # fmt: skip
    trace = executed(made)
    assert trace["units"].tolist()[2:5] == [4, 4, 4]
    assert trace["fresh"].tolist()[2:5] == [4, 0, 2]


@pytest.mark.parametrize(
    ("width", "apart", "expected"), [(4, 4, 1), (4, 8, 2), (4, 128, 32), (4, 0, 1), (8, 8, 2), (16, 16, 4), (16, 0, 2)]
)
def test_passes_through_the_banks(width, apart, expected):
    bits = {4: "", 8: ".64", 16: ".128"}[width]
    trace = executed(written("S2R R0, SR_TID.X", f"IMAD R0, R0, {hex(apart)}, RZ", f"LDS{bits} R4, [R0]", "EXIT"))
    assert trace["units"][2] == expected


VALUES = st.integers(0, 2**32 - 1)


@given(VALUES, VALUES, st.integers(1, 30))
@SETTINGS
def test_arithmetic_is_that_of_whole_numbers(a, b, shift):
    """Sums, products and shifts of 64 bits, from two registers each, as a compiler makes them of pointers."""
    expected = {
        4: (a + b) % 2**32,
        5: (a + (2**32 - 1 - b) + (a + b >> 32)) % 2**32,
        6: a * b % 2**32,
        7: a * b >> 32,
        8: ((b << 32 | a) << shift >> 32) % 2**32,
        9: (a - b) % 2**32,
    }
    computed = [
        f"MOV R0, {hex(a)}", f"MOV R1, {hex(b)}",
        "IADD3 R4, P0, R0, R1, RZ", "IADD3.X R5, R0, ~R1, RZ, P0, !PT",
        "IMAD.WIDE.U32 R6, R0, R1, RZ", f"LEA.HI R8, R0, RZ, R1, {hex(shift)}", "IADD3 R9, R0, -R1, RZ",
    ]  # fmt: skip
    end = len(computed) + 2 * len(expected)
    for number, value in expected.items():
        computed += [f"ISETP.NE.AND P1, PT, R{number}, {hex(value)}, PT", f"@P1@ BRA {hex(16 * (end + 1))}"]
    made = written(*computed, "FFMA R0, R0, R0, R0", "EXIT")  # reached where every comparison holds
    assert executed(made)["at"].tolist() == list(range(end + 2))


@pytest.mark.parametrize(("low", "carries"), [(2**32 - 2, False), (2**32 - 1, True)])
def test_the_upper_half_of_a_shifted_sum_carries(low, carries):
    """As the lower word of an address is made of a negative index."""
    made = written(
        "MOV R0, 0x80000000", f"MOV R1, {hex(low)}", "LEA.HI R2, P0, R0, R1, RZ, 0x1", "@P0@ BRA 0x50", "EXIT", "EXIT"
    )
    assert executed(made)["at"].tolist() == [0, 1, 2, 3, 5 if carries else 4]


def test_time_is_bounded_by_what_pipes_and_latencies_need():
    """A warp of dependent multiply-adds waits as its stalls say; several fill the pipe, which takes two cycles each."""
    core = gpu_core_of(80)
    stalls = SassKernel("k", 80, 32, 0, 0, tuple(
        SassLine("", "FFMA", (), ("R0", "R0", "R0", "R0"), 0, Control(4, False, 7, 7, 0)) for _ in range(200)
    ))  # fmt: skip
    rows = rows_of(stalls)
    trace = executed(stalls)

    def cycles(warps):
        return run_residents(rows, trace, core, Residents(1, warps, 4, 1.0), 100_000).cycles

    assert cycles(1) == 4 * 200
    assert cycles(2) <= 4 * 200 + 4
    assert cycles(8) == pytest.approx(2 * 8 * 200, rel=0.01)


def test_a_load_that_misses_is_waited_for():
    core = gpu_core_of(80)

    def line(text, *control):
        (one,) = written(text).lines
        return SassLine(one.guard, one.opcode, one.modifiers, one.operands, 0, Control(*control))

    made = SassKernel("k", 80, 32, 0, 0, (
        line("LDG.E R0, [R2.64]", 1, False, 0, 7, 0), line("FADD R0, R0, R0", 4, False, 7, 7, 1),
        line("EXIT", 1, False, 7, 7, 0),
    ))  # fmt: skip
    rows, trace = rows_of(made), executed(made)
    missed, hit = (
        run_residents(rows, one, core, Residents(1, 1, 1, 1.0), 100).cycles for one in (trace, _without_fresh(trace))
    )
    assert missed - hit == pytest.approx(core["l2_latency"] - core["l1_latency"], abs=2)


def test_stores_to_the_stack_are_written_through_and_take_a_line_a_word():
    core = gpu_core_of(80)
    made = written(*["STL [R1], R0", "STL.128 [R1], R0"] * 100, "EXIT", stack_bytes=16)
    trace = executed(made)
    assert trace["units"][:2].tolist() == [4, 16] and trace["merged"][:2].tolist() == [1, 4]
    rows, residents = rows_of(made), Residents(1, 1, 1, 1.0)
    least = 100 * (4 + 16) / core["store_sectors_per_cycle"]
    assert run_residents(rows, trace, core, residents, 1000).l2_cycles >= least


def test_an_access_to_many_lines_keeps_the_cache_longer_than_its_sectors_do():
    core = gpu_core_of(80)
    apart = written("S2R R0, SR_TID.X", "IMAD.WIDE R2, R0, 0x80, c[0x0][0x160]", "LDG.E R4, [R2.64]", "EXIT")
    load = executed(apart)[2]
    assert load["units"] == 32 and load["merged"] == 32
    assert cache_passes(core, load["units"], load["merged"]) == 32 / core["l1_lines_per_cycle"]
    assert cache_passes(core, 16, 4) == 16 / core["l1_sectors_per_cycle"]


def _without_fresh(trace):
    changed = trace.copy()
    changed["fresh"] = 0
    return changed


def test_occupancy_is_the_least_of_what_limits_it():
    core = gpu_core_of(80)
    found = occupancy(core, Launch((1000, 1, 1), (256, 1, 1)), 64, 16384)
    assert (found.by_threads, found.by_blocks, found.by_registers, found.by_shared) == (8, 32, 4, 9)
    assert found.blocks == 4
    assert occupancy(core, Launch((1, 1, 1), (1024, 1, 1)), 255, 0).blocks == 1


def test_threads_and_blocks_of_three_dimensions():
    made = written(
        "S2R R0, SR_TID.Y",
        "S2R R1, SR_CTAID.Z",
        "IMAD R2, R1, 0x4, R0",
        "SHF.L.U32 R2, R2, 0x2, RZ",
        "LDS R3, [R2]",
        "EXIT",
    )
    trace = executed(made, Launch((2, 2, 4), (4, 8, 1)), block=13)
    assert trace["units"][4] == 1 and trace["merged"][4] == 1
    assert Launch((2, 2, 4), (4, 8, 2)).threads == 64 and Launch((2, 2, 4), (4, 8, 2)).blocks == 16


@pytest.mark.parametrize("arch", described_archs())
def test_every_described_core_is_whole_and_its_machine_code_known(arch):
    number = int(arch.removeprefix("sm_"))
    core = gpu_core_of(number)
    assert number in core.archs and core["schedulers"] == 4
    assert core["l1_latency"] < core["l2_latency"]
    assert executed(written("EXIT", arch=number)).shape == (1,)


def test_devices_of_described_archs_name_them():
    named = {sheet.target.get("arch") for sheet in map(devices.get, devices.names()) if sheet.kind == "gpu"}
    assert set(described_archs()) <= named


def test_a_core_that_lacks_a_number_is_refused(tmp_path):
    text = (conf_folder() / "gpu_core" / "ga100.yaml").read_text()
    broken = tmp_path / "ga100.yaml"
    broken.write_text("\n".join(line for line in text.splitlines() if "l2_latency" not in line))
    with pytest.raises(CdmppError, match="numbers missing or unknown: l2_latency"):
        read_gpu_core(broken)


@pytest.mark.parametrize("name", NAMES)
def test_a_listing_is_read_as_it_was_written(name):
    kernels = parse_sass(gzip.decompress((LISTINGS / f"{name}.txt.gz").read_bytes()).decode())
    assert parse_sass(listed(kernels)) == kernels
