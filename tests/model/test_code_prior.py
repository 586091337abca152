"""The fitted costs of code vectors: found again where a known machine made the labels, absent where little tells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from toy_data import toy_dataset

from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.devices import VECTOR_WIDTH
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, CODE_WIDTH
from cdmpp.model.analytic import kernel_parts
from cdmpp.model.build import build_for
from cdmpp.model.code_prior import MIN_PROGRAMS, CodePrior, _inputs
from cdmpp.model.config import model_config
from cdmpp.model.cpu_parts import cores_used
from cdmpp.model.kernel_quantities import KernelQuantities
from tests.model.test_models import SMALL

SHEET = devices.get("xeon-icelake")
COSTS = {"n_float_16": 0.5, "n_load_16": 0.5, "n_gather": 2.6, "n_store_16": 1.0}


def coded_asts(n: int, seed: int = 0, coded: float = 1.0) -> tuple[AstTable, np.ndarray]:
    """Programs and their cycles on a machine with two ports, arithmetic and memory, of which the busier decides."""
    dataset, _ = toy_dataset(n, seed)
    rng = np.random.default_rng(seed)
    amounts = np.zeros((n, CODE_WIDTH))
    for name in COSTS:
        amounts[:, CODE_NAMES.index(name)] = 10 ** rng.uniform(6, 9, n) * (rng.random(n) < 0.8)
    cost = {name: amounts[:, CODE_NAMES.index(name)] * cycles for name, cycles in COSTS.items()}
    cycles = np.maximum(cost["n_float_16"], cost["n_load_16"] + cost["n_gather"] + cost["n_store_16"]) + 1e6
    codes = np.log2(1 + amounts).astype(np.float32)
    codes[rng.random(n) >= coded] = np.nan
    asts = dataclasses.replace(dataset.asts.with_codes(codes), kernel_features=0 * dataset.asts.kernel_features)
    return asts, cycles


def programs_of(n: int, seed: int = 0, coded: float = 1.0) -> ProgramTensors:
    asts, cycles = coded_asts(n, seed, coded)
    seconds = cycles / (1e6 * SHEET.spec["clock_mhz"])
    return ProgramTensors.build(asts, {SHEET.name: SHEET}, [SHEET.name] * n, seconds)


def answers(prior: CodePrior, programs: ProgramTensors, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    batch = programs.batch(rows)
    return prior(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)


@pytest.fixture(scope="module")
def fitted():
    programs, prior = programs_of(1200), CodePrior(1, VECTOR_WIDTH)
    prior.fit(programs, np.arange(1000))
    return prior, programs


def test_programs_it_never_saw_are_timed(fitted):
    prior, programs = fitted
    rows = np.arange(1000, 1200)
    found, shares = answers(prior, programs, rows)
    error = (found - programs.log_latency[rows]).abs()
    assert float(error.median()) < 0.1 and float(error.mean()) < 0.2
    assert bool((shares <= 1e-4).all()), "no resource takes longer than the whole"


def test_one_program_is_timed_as_in_a_batch(fitted):
    prior, programs = fitted
    together, _ = answers(prior, programs, np.arange(20))
    alone = torch.cat([answers(prior, programs, np.array([row]))[0] for row in range(20)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [4.0, 8.0])
def test_simulated_cycles_are_the_devices_own_already(width):
    """What is only counted goes by the width of the core; what was simulated on it does not, once more."""
    device = dataclasses.replace(SHEET, spec={**SHEET.spec, "issue_width": width})
    asts, _ = coded_asts(1)
    codes = np.zeros((1, CODE_WIDTH), np.float32)
    simulated = {"cycles": 1e6, "latency_cycles": 5e5, "issue_cycles": 3e5, "overlap_cycles": 1e5}
    for name, amount in {**simulated, "is_int": 8e5}.items():
        codes[0, CODE_NAMES.index(f"machine_{name}")] = np.log2(1 + amount)
    programs = ProgramTensors.build(asts.with_codes(codes), {device.name: device}, [device.name], np.ones(1))
    batch = programs.batch(np.arange(1))
    amounts, _ = _inputs(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
    found = sorted(round(float(x)) for x in amounts[0] if x > 1e4)
    assert found == pytest.approx(sorted([1e6, 5e5, 3e5, 1e6 - 1e5, 8e5 * 5 / width]), rel=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "cheaper"),
    [("gather_cycles_per_lane", 0.3, ("n_gather",)), ("issue_width", 10.0, tuple(set(COSTS) - {"n_gather"}))],
)
def test_what_the_datasheet_of_another_device_says_is_believed_without_a_label(fitted, field, value, cheaper):
    prior, _ = fitted
    other = dataclasses.replace(SHEET, name="other", spec={**SHEET.spec, field: value})
    factor = value / SHEET.spec[field] if "cycles" in field else SHEET.spec[field] / value
    asts, _ = coded_asts(400, seed=3)
    amounts = np.exp2(asts.codes) - 1
    cost = {name: amounts[:, CODE_NAMES.index(name)] * cycles for name, cycles in COSTS.items()}
    cost = {name: cycles * (factor if name in cheaper else 1.0) for name, cycles in cost.items()}
    cycles = np.maximum(cost["n_float_16"], cost["n_load_16"] + cost["n_gather"] + cost["n_store_16"]) + 1e6
    seconds = cycles / (1e6 * SHEET.spec["clock_mhz"])
    programs = ProgramTensors.build(asts, {"other": other}, ["other"] * 400, seconds)
    found, _ = answers(prior, programs, np.arange(400))
    assert float((found - programs.log_latency).abs().median()) < 0.15


def test_no_count_of_gathers_escapes_what_the_datasheet_says_of_them():
    """One that did let the fit to devices with slow gathers foretell fivefold times on others."""
    gathers = [name for name in CODE_NAMES if "gather" in name]
    assert len(gathers) == 3
    asts, _ = coded_asts(1)
    codes = np.zeros((1, CODE_WIDTH), np.float32)
    codes[0, [CODE_NAMES.index(name) for name in gathers]] = np.log2(1 + np.array([1e6, 2e6, 3e6]))
    found = []
    for gather_cycles in (1.0, 10.0):
        device = dataclasses.replace(SHEET, spec={**SHEET.spec, "gather_cycles_per_lane": gather_cycles})
        programs = ProgramTensors.build(asts.with_codes(codes), {device.name: device}, [device.name], np.ones(1))
        batch = programs.batch(np.arange(1))
        amounts, _ = _inputs(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
        found.append(sorted(float(x) for x in amounts[0] if x > 1e5))
    assert found[0] == pytest.approx([1e6, 2e6, 3e6], rel=1e-3)
    assert found[1] == pytest.approx([1e7, 2e7, 3e7], rel=1e-3)


def test_labels_outside_the_training_rows_change_nothing(fitted):
    prior, programs = fitted
    labels = programs.log_latency.clone()
    labels[1000:] = 7.0
    again = CodePrior(1, VECTOR_WIDTH)
    again.fit(dataclasses.replace(programs, log_latency=labels), np.arange(1000))
    assert torch.equal(again.log_cost, prior.log_cost)


def test_few_programs_tell_nothing():
    programs, prior = programs_of(MIN_PROGRAMS + 100, coded=0.5), CodePrior(1, VECTOR_WIDTH)
    prior.fit(programs, np.arange(MIN_PROGRAMS + 100))
    assert prior.fitted == 0
    model = build_for(model_config(SMALL), programs, np.arange(300)).eval()
    with torch.no_grad():
        model.out.weight.zero_()
        batch = programs.batch(np.arange(50))
        torch.testing.assert_close(model(batch).log_latency, model.prior.total(batch))


def test_an_untrained_model_answers_with_it_where_there_is_code():
    programs = programs_of(1000, coded=0.9)
    model = build_for(model_config(SMALL), programs, np.arange(1000)).eval()
    with torch.no_grad():
        model.out.weight.zero_()
        batch = programs.batch(np.arange(100))
        by_code, _ = answers(model.code_prior, programs, np.arange(100))
        expected = torch.where(batch.codes[:, 0] > 0, by_code, model.prior.total(batch))
        torch.testing.assert_close(model(batch).log_latency, expected, rtol=1e-4, atol=1e-4)


def test_cores_are_those_that_parallel_loops_keep_busy():
    from cdmpp.ast.layout import KERNEL_NAMES
    from cdmpp.data.batching import spec_array

    two = devices.get("xeon-icelake-2c")
    kernels = torch.zeros(2, 2, len(KERNEL_NAMES))
    kernels[:, :, KERNEL_NAMES.index("iterations")] = 20.0
    kernels[0, :, KERNEL_NAMES.index("parallel_extent")] = 3.0  # log2(1 + 7)
    kernels[1, 0, KERNEL_NAMES.index("parallel_extent")] = 3.0
    spec = torch.from_numpy(np.stack([spec_array(two)] * 2))
    found = cores_used(
        KernelQuantities(kernels, spec, torch.zeros(2, dtype=torch.int64)), torch.ones(2, 2, dtype=torch.bool)
    )
    torch.testing.assert_close(found, torch.tensor([2.0, 4 / 3]))
