"""A model that learned GPU code reads it of CUDA programs, and says where it could not."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from benchmarks.workloads import TARGETS, tasks
from cdmpp import devices
from cdmpp.machine_code.gpu.cuda import can_compile_cuda
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.predict.flags import NO_MACHINE_CODE
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.program_batch import ReadOptions
from cdmpp.predict.read import read_batch
from cdmpp.programs.replay import parse_target
from cdmpp.programs.sampling import sample_programs
from tests.model.test_gpu_code_prior import SHEET, programs_of
from tests.model.test_models import SMALL

pytestmark = pytest.mark.tvm
PATIENT_S = 3600.0
"""NVIDIA's tools may wait for a core as long as that: on a busy machine the default is too short."""
needs_tools = pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC: pip install 'cdmpp[cuda]'")


@pytest.fixture(scope="module")
def predictor():
    return Predictor([build_for(model_config(SMALL), programs_of(200), np.arange(200))], {SHEET.name: SHEET})


@pytest.fixture(scope="module")
def programs():
    target = parse_target(devices.get(TARGETS["cuda"]).target)
    return sample_programs(tasks()["matmul"], target, 2, 0, mutants=0.0)


@needs_tools
def test_programs_in_memory_are_compiled(predictor, programs):
    answer = predictor.predict(programs, "a100", limit_s=PATIENT_S)
    assert all(NO_MACHINE_CODE not in flags for flags in answer.flags)
    plain = predictor.predict(programs, "a100", compiled=False)
    assert all(NO_MACHINE_CODE in flags for flags in plain.flags)  # asked for or not
    assert (answer.latency_s != plain.latency_s).all()


def test_a_gpu_that_no_core_is_described_of_goes_without(predictor, programs):
    old = devices.get("v100")
    inputs = read_batch(programs, ReadOptions(devices.get("a100")))
    answer = predictor.predict(inputs.asts, old)
    assert all(NO_MACHINE_CODE in flags for flags in answer.flags)


def test_a_model_of_cpus_reads_no_gpu_code(programs):
    cpus = devices.get("xeon-icelake")
    from tests.model.test_code_prior import programs_of as cpu_programs

    model = build_for(model_config(SMALL), cpu_programs(200), np.arange(200))
    assert model.config.code_kind == "cpu"
    answer = Predictor([model], {cpus.name: cpus}).predict(programs, "a100")
    assert all(NO_MACHINE_CODE not in flags for flags in answer.flags)
