"""What kernels of halves sustain is learned where they were measured, and holds for devices that ran none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.split_rules import Split
from cdmpp.errors import CdmppError
from cdmpp.model.eager_prior import EagerPrior
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import operator_program
from cdmpp.training.config import LossConfig
from cdmpp.training.inputs import FitInputs
from tests.model.test_eager import FLOOR_S, MEMORY, NAMES, operators, seconds
from tests.toy_data import toy_dataset

HALF_COMPUTE = 0.3
"""Share of the matrix units' rate."""


def half_seconds(operator: EagerOperator, device: str) -> float:
    spec = devices.get(device).spec
    peak = 1e12 * (spec["fp16_matrix_tflops"] if operator.name == "linear" else spec["fp32_tflops"])
    busy = max(operator.flops / peak / HALF_COMPUTE, operator.io_bytes / (1e9 * spec["bandwidth_gbps"]) / MEMORY)
    return FLOOR_S + busy


def tensors(chosen: list[EagerOperator], names: list[str]) -> ProgramTensors:
    labels = [
        (seconds if one.dtype == "float32" else half_seconds)(one, n) for one, n in zip(chosen, names, strict=True)
    ]
    asts = AstTable.from_asts(operator_program(operator, "gpu") for operator in chosen)
    return ProgramTensors.build(asts, {name: devices.get(name) for name in NAMES}, names, np.array(labels))


def test_shares_of_halves_pass_to_devices_that_ran_singles_alone():
    singles = operators(600, 0)
    halves = [dataclasses.replace(one, dtype="float16") for one in operators(300, 1)]
    programs = tensors([*singles, *halves], [NAMES[i % 3] for i in range(600)] + ["a100"] * 300)
    prior = EagerPrior(8, devices.VECTOR_WIDTH)
    prior.fit(programs, np.arange(900))
    assert float(prior.halves.abs().max()) > 0.2 and not prior.halves[:, 0].any()  # the floor is the host's
    for of, names in ((halves[:200], ["t4"] * 200), (singles[:200], [NAMES[i % 3] for i in range(200)])):
        batch = tensors(of, names).batch(np.arange(200))
        assert float((prior(batch) - batch.log_latency).abs().mean()) < 0.12


def test_without_halves_there_is_nothing_to_learn_of_them():
    programs = tensors(operators(300, 0), [NAMES[i % 3] for i in range(300)])
    prior = EagerPrior(8, devices.VECTOR_WIDTH)
    prior.fit(programs, np.arange(300))
    assert not prior.halves.any()


def test_a_balance_beyond_all_devices_alike_is_refused():
    for power in (-0.5, 2.0):
        with pytest.raises(CdmppError, match="loss.device_balance"):
            LossConfig(device_balance=power)


def test_devices_with_few_programs_count_as_they_are_asked_to():
    dataset, _ = toy_dataset(220)
    names = np.array(["t4"] * 160 + ["l4"] * 40 + ["t4"] * 20)
    dataset = dataclasses.replace(dataset, devices=names)
    split = Split("by_hand", 0, np.arange(200), np.arange(200, 210), np.arange(210, 220))
    weights = {
        power: FitInputs.build(dataset, split, LossConfig(device_balance=power), "cpu").programs.weights[:200]
        for power in (0.0, 0.5, 1.0)
    }
    assert set(weights[0.0].tolist()) == {1.0}
    for power, ratio in ((0.5, 2.0), (1.0, 4.0)):
        assert float(weights[power][199] / weights[power][0]) == np.float32(ratio)
        assert abs(float(weights[power].mean()) - 1) < 1e-6
