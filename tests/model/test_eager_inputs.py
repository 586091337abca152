"""What the model of framework operators reads: times on the device, and Winograd's squares."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.model.eager_inputs import EagerQuantities
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import operator_program


@pytest.mark.parametrize(("device", "gbps"), [("xeon-icelake", 12), ("xeon-emeraldrapids", 20), ("t4", 320)])
def test_a_cpu_has_the_bandwidth_of_its_cores(device, gbps):
    kind = devices.get(device).kind
    asts = AstTable.from_asts([operator_program(EagerOperator.parse("copy", "1024x1024"), kind)])
    one = ProgramTensors.build(asts, {device: devices.get(device)}, [device], np.ones(1))
    quantities = EagerQuantities(one.batch(np.arange(1)))
    assert float(quantities.memory_s()) == pytest.approx(2 * 4 * 2**20 / (1e9 * gbps), rel=1e-4)


def test_winograd_is_told_for_what_can_be_computed_so():
    chosen = [
        EagerOperator.parse("conv2d", "8x32x64x14x3", padding=1),
        EagerOperator.parse("conv2d", "8x32x64x14x3", padding=1, stride=2),
        EagerOperator.parse("conv2d", "8x32x64x14x1"),
    ]
    asts = AstTable.from_asts(operator_program(one, "gpu") for one in chosen)
    programs = ProgramTensors.build(asts, {"t4": devices.get("t4")}, ["t4"] * 3, np.ones(3))
    quantities = EagerQuantities(programs.batch(np.arange(3)))
    spec, squares = devices.get("t4").spec, 8 * 4 * 4  # 14 rows in squares of 4: four of them, the last half empty
    work_s, moved_s, waves, filled, used, last = (float(one[0]) for one in quantities.winograd(4))
    assert work_s == pytest.approx(np.log(2 * 36 * squares * 32 * 64 / (1e12 * spec["fp32_tflops"])), abs=1e-4)
    assert moved_s == pytest.approx(np.log(4 * 36 * squares * (32 + 64) / (1e9 * spec["bandwidth_gbps"])), abs=1e-4)
    blocks = 36 * 1 * 1 / spec["core_count"]
    assert (waves, filled) == pytest.approx((np.log1p(blocks), blocks / np.ceil(blocks)), abs=1e-5)
    assert (used, last) == pytest.approx((14 / 16, 1.0), abs=1e-5)
    assert all(one[1:].tolist() == [0.0, 0.0] for side in (2, 4) for one in quantities.winograd(side))
