"""From tensor programs to executed CUDA kernels: what is executed is what the program says."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks.workloads import TARGETS, tasks
from cdmpp import devices
from cdmpp.ast.extract import extract
from cdmpp.ast.kernel_features import KERNEL_NAMES
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.cuda import assembled, can_compile_cuda
from cdmpp.machine_code.cuda_source import cuda_source
from cdmpp.machine_code.gpu_core import gpu_core_of
from cdmpp.machine_code.kernel_code import KernelWork, kernel_code
from cdmpp.machine_code.sass_rows import CLASSES
from cdmpp.programs.replay import parse_target
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Program

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'"),
]


def read(names, each, seed=0):
    """(program, kernel, its row of the AST, code) of sampled CUDA programs."""
    target = parse_target(devices.get(TARGETS["cuda"]).target)
    programs = {
        f"{name}-{i}": program
        for name in names
        for i, program in enumerate(sample_programs(tasks()[name], target, each, seed, mutants=0.0))
    }
    sources = {key: cuda_source(program) for key, program in programs.items()}
    machine = assembled({key: source.text for key, source in sources.items()}, 80)
    core = gpu_core_of(80)
    for key, source in sources.items():
        ast = extract(programs[key].module, target)
        assert len(ast.kernel_features) == len(source.launches)
        for row, (name, launch) in zip(ast.kernel_features, source.launches.items(), strict=True):
            amounts = dict(zip(KERNEL_NAMES, np.exp2(row.astype(float)) - 1, strict=True))
            work = KernelWork(amounts["block_read_bytes"], amounts["fma_per_thread"])
            one = machine[key]
            yield key, amounts, kernel_code(one.kernels[name], launch, core, 108, work, one.literals.get(name, b""))


def check(found):
    for key, amounts, code in found:
        assert (code.launch.blocks, code.launch.threads) == (
            round(amounts["blocks"]),
            round(amounts["block_threads"]),
        ), key
        if not code.capped and not key.startswith("softmax"):  # TVM makes multiply-adds of exponentials there
            assert code.counts["ffma"] == pytest.approx(amounts["fma_per_thread"], rel=1e-5, abs=1e-3), key
        assert code.cycles["simulated"] > 0.5 * max(code.cycles["fma"], code.cycles["alu"]), key
        assert set(code.counts) == set(CLASSES)
        assert 0 < code.active_share <= 1


def test_kernels_execute_what_their_programs_say():
    found = list(read(("matmul", "softmax", "elementwise"), 2))
    assert {key.split("-")[0] for key, _, _ in found} == {"matmul", "softmax", "elementwise"}
    check(found)


@pytest.mark.slow
def test_hundreds_of_kernels_execute_what_their_programs_say():
    found = list(read(("matmul", "conv2d", "elementwise"), 100))
    assert len(found) > 150
    check(found)
    assert sum(code.capped for _, _, code in found) < 0.1 * len(found)


def test_the_source_is_that_of_the_compiler():
    import tvm

    target = parse_target(devices.get(TARGETS["cuda"]).target)
    (program,) = sample_programs(tasks()["matmul"], target, 1, 0, mutants=0.0)
    (device,) = tvm.compile(program.module, target=target).mod.imports
    assert cuda_source(program).text == device.inspect_source()


def test_a_program_without_kernels_is_refused():
    target = parse_target(devices.get(TARGETS["cuda"]).target)
    from cdmpp.programs.replay import parse_workload

    unscheduled = parse_workload(tasks()["matmul"].workload)
    with pytest.raises(UnsupportedProgramError, match="kernels for 0 targets"):
        cuda_source(Program(unscheduled, target))
