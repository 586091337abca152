"""The fitted costs of executed GPU kernels: found again where a known machine made the labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from toy_data import toy_dataset

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import CdmppError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_NAMES
from cdmpp.machine_code.gpu.kernel_code import VARIANTS
from cdmpp.model import gpu_code_prior
from cdmpp.model.analytic import kernel_parts
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.model.gpu_code_prior import MIN_PROGRAMS, RESOURCES, GpuCodePrior
from tests.model.test_models import SMALL

SHEET = devices.get("a100")
OTHER = devices.get("h100")
LAUNCH_S = 2.8e-6


def programs_of(n: int, seed: int = 0, coded: float = 1.0, sheet: devices.Device = SHEET) -> ProgramTensors:
    """Their latency is nine tenths of the simulated cycles and a tenth of those of the stack, or the starts.

    Each launch takes as long on any GPU.
    """
    dataset, _ = toy_dataset(n, seed)
    rng = np.random.default_rng(seed)
    amounts = np.zeros((n, CODE_WIDTH))

    def column(name: str) -> np.ndarray:
        return amounts[:, GPU_CODE_NAMES.index(name)]

    column("kernels")[:] = 1 + rng.integers(0, 3, n)
    column("cycles_simulated")[:] = 10 ** rng.uniform(3, 6, n)
    for variant in VARIANTS:
        column(f"cycles_{variant}")[:] = column("cycles_simulated")
    column("cycles_stack")[:] = 10 ** rng.uniform(3, 6, n) * (rng.random(n) < 0.3)
    column("cycles_start")[:] = 10 ** rng.uniform(1, 6, n)
    busy = 0.9 * column("cycles_simulated") + 0.1 * column("cycles_stack")
    cycles = np.maximum(busy, column("cycles_start"))
    codes = np.log2(1 + amounts).astype(np.float32)
    codes[rng.random(n) >= coded] = np.nan
    asts = dataclasses.replace(
        dataset.asts.with_codes(codes),
        kernel_features=0 * dataset.asts.kernel_features,
        target_kinds=np.ones_like(dataset.asts.target_kinds),
    )
    seconds = cycles / (1e6 * sheet.spec["clock_mhz"]) + LAUNCH_S * column("kernels")
    return ProgramTensors.build(asts, {sheet.name: sheet}, [sheet.name] * n, seconds)


def errors(prior: GpuCodePrior, programs: ProgramTensors, rows: np.ndarray) -> torch.Tensor:
    batch = programs.batch(rows)
    found, shares = prior(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
    assert shares.shape == (len(rows), len(RESOURCES)) and bool((shares <= 1e-4).all())
    return (found - batch.log_latency).abs()


def test_programs_it_never_saw_are_timed():
    programs, prior = programs_of(700), GpuCodePrior()
    test = np.arange(500, 700)
    before = float(errors(prior, programs, test).mean())
    prior.fit(programs, np.arange(500))
    assert prior.fitted == 1
    assert float(errors(prior, programs, test).mean()) < min(0.06, 0.5 * before)
    launch_ns = float(prior.log_cost[gpu_code_prior.LAUNCH].exp())
    assert 1e9 * LAUNCH_S / 1.3 < launch_ns < 1e9 * LAUNCH_S * 1.3


def test_a_gpu_of_another_clock_launches_no_faster():
    programs, prior = programs_of(500), GpuCodePrior()
    prior.fit(programs, np.arange(500))
    assert OTHER.spec["clock_mhz"] > 1.3 * SHEET.spec["clock_mhz"]
    assert float(errors(prior, programs_of(200, 1, sheet=OTHER), np.arange(200)).mean()) < 0.06


def test_too_few_programs_leave_it_as_it_is():
    programs, prior = programs_of(MIN_PROGRAMS - 1), GpuCodePrior()
    prior.fit(programs, np.arange(MIN_PROGRAMS - 1))
    assert prior.fitted == 0


def test_a_model_of_gpu_programs_reads_their_code():
    programs = programs_of(300, coded=0.8)
    model = build_for(model_config(SMALL), programs, np.arange(250)).eval()
    assert (model.config.code, model.config.code_kind) == (True, "gpu")
    batch = programs.batch(np.arange(250, 300))
    with torch.no_grad():
        error = (model(batch).log_latency - batch.log_latency).abs()
    coded = batch.codes[:, 0] > 0
    assert bool(coded.any()) and bool((~coded).any())
    assert float(error[coded].mean()) < 0.3 < float(error[~coded].mean())


def test_codes_of_both_kinds_in_one_training_are_refused():
    programs = programs_of(60)
    mixed = dataclasses.replace(programs, kinds=torch.arange(60) % 2)
    with pytest.raises(CdmppError, match="CPU and GPU programs with code vectors"):
        build_for(model_config(SMALL), mixed, np.arange(60))


def test_an_unknown_kind_is_named():
    with pytest.raises(CdmppError, match="model.code_kind is 'tpu'; one of cpu, gpu"):
        model_config({**SMALL, "code_kind": "tpu"})
