"""From tensor programs to executed CUDA kernels: what is executed is what the program says."""

import re
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks.workloads import TARGETS, tasks
from cdmpp import devices
from cdmpp.ast.extract import extract
from cdmpp.ast.kernel_features import KERNEL_NAMES
from cdmpp.devices.gpu_core import gpu_core_of
from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.gpu.cuda import Assembled, assembled, can_compile_cuda
from cdmpp.machine_code.gpu.cuda_source import CudaSource, cuda_source
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_FEATURES, GPU_CODE_NAMES
from cdmpp.machine_code.gpu.gpu_code_vector import gpu_code_vector
from cdmpp.machine_code.gpu.kernel_code import KernelWork, kernel_code
from cdmpp.programs.replay import parse_target, parse_workload
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Program

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'"),
]
MULTIPROCESSORS = 108


class Read(NamedTuple):
    source: CudaSource
    machine: Assembled
    amounts: list[dict[str, float]]
    """Of each kernel, by its AST."""

    @property
    def works(self):
        return [KernelWork(one["block_read_bytes"], one["fma_per_thread"]) for one in self.amounts]


def read(names, each):
    """Sampled CUDA programs by name."""
    target = parse_target(devices.get(TARGETS["cuda"]).target)
    programs = {
        f"{name}-{i}": program
        for name in names
        for i, program in enumerate(sample_programs(tasks()[name], target, each, 0, mutants=0.0))
    }
    sources = {key: cuda_source(program) for key, program in programs.items()}
    machine = assembled({key: source.text for key, source in sources.items()}, 80)
    found = {}
    for key, source in sources.items():
        rows = np.exp2(extract(programs[key].module, target).kernel_features.astype(float)) - 1
        found[key] = Read(source, machine[key], [dict(zip(KERNEL_NAMES, row.tolist(), strict=True)) for row in rows])
    return found


@pytest.fixture(scope="module")
def few():
    return read(("matmul", "softmax", "elementwise"), 2)


def stopped(found):
    """How many kernels were; what those that ended executed is checked."""
    core, n = gpu_core_of(80), 0
    for key, one in found.items():
        for (name, launch), amounts, work in zip(one.source.launches.items(), one.amounts, one.works, strict=True):
            assert (launch.blocks, launch.threads) == (round(amounts["blocks"]), round(amounts["block_threads"])), key
            literals = one.machine.literals.get(name, b"")
            code = kernel_code(one.machine.kernels[name], launch, core, MULTIPROCESSORS, work, literals)
            n += code.capped
            if not code.capped and not key.startswith("softmax"):  # exponentials are made of multiply-adds there
                assert code.counts["ffma"] == pytest.approx(work.fma_per_thread, rel=1e-5, abs=1e-3), key
            assert code.cycles["simulated"] > 0.5 * max(code.cycles["fma"], code.cycles["alu"]), key
            assert 0 < code.active_share <= 1
    return n


def test_kernels_execute_what_their_programs_say(few):
    assert {key.split("-")[0] for key in few} == {"matmul", "softmax", "elementwise"}
    assert stopped(few) <= 1


@pytest.mark.slow
def test_hundreds_of_kernels_execute_what_their_programs_say():
    many = read(("matmul", "conv2d", "elementwise"), 100)
    assert len(many) > 150
    assert stopped(many) < 0.1 * len(many)


def test_a_code_vector_adds_kernels_up(few):
    assert len(GPU_CODE_FEATURES) <= CODE_WIDTH  # stored in the same columns as those of CPUs
    core = gpu_core_of(80)
    for key, one in few.items():
        vector = gpu_code_vector(one.source.launches, one.machine, one.works, core, MULTIPROCESSORS)
        assert vector.shape == (len(GPU_CODE_FEATURES),) and np.isfinite(vector).all()
        amounts = dict(zip(GPU_CODE_NAMES, vector.tolist(), strict=True))
        assert 2 ** amounts["kernels"] - 1 == pytest.approx(len(one.source.launches)), key
        assert (amounts["longest_share"] == 1.0) == (len(one.source.launches) == 1)
    whole, half = (gpu_code_vector(one.source.launches, one.machine, one.works, core, n) for n in (108, 54))
    place = GPU_CODE_NAMES.index("cycles_simulated")
    assert half[place] >= whole[place]


def test_kernels_of_another_program_are_refused(few):
    one, other = few["matmul-0"], few["softmax-0"]
    with pytest.raises(DataError, match="the compiler made kernels"):
        gpu_code_vector(one.source.launches, other.machine, [*one.works, *one.works], gpu_core_of(80), MULTIPROCESSORS)


def test_the_source_is_that_of_the_compiler():
    import tvm

    target = parse_target(devices.get(TARGETS["cuda"]).target)
    (program,) = sample_programs(tasks()["matmul"], target, 1, 0, mutants=0.0)
    (device,) = tvm.compile(program.module, target=target).mod.imports
    without_variables = re.sub(r"\n *int cse_v\d+ = [^;]*;", "", device.inspect_source())
    assert cuda_source(program).text == without_variables  # nothing read them, or their names would stand there still


def test_a_program_without_kernels_is_refused():
    target = parse_target(devices.get(TARGETS["cuda"]).target)
    with pytest.raises(UnsupportedProgramError, match="kernels for 0 targets"):
        cuda_source(Program(parse_workload(tasks()["matmul"].workload), target))
