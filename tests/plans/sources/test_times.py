"""Times that a source tells without its ops are those of its work."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from cdmpp import Workload, devices
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import StepTimes
from cdmpp.plans.sources.sustained import SustainedSource
from cdmpp.plans.strategies.tensor import Tensor

NETWORK = f"{Path(__file__).parents[1] / 'script' / 'small_lm.py'}:make"
BATCH = 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("is_divided", [False, True])
def test_times_are_those_of_the_work(precision, is_divided):
    workload = Workload(NETWORK, mode="training_step", precision=precision)
    device = devices.get("h100")
    degrees, strategies = (ParallelDegrees(tp=2), (Tensor(),)) if is_divided else (ParallelDegrees(), ())
    nominal = PredictedSource(workload, device)
    for source in (nominal, SustainedSource(nominal, device, workload.precision)):
        told, expected = source.times(BATCH, degrees, strategies), StepTimes.of(source.work(BATCH, degrees, strategies))
        for one in fields(StepTimes):
            mine, theirs = getattr(told, one.name), getattr(expected, one.name)
            if isinstance(theirs, np.ndarray | float):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-18, err_msg=one.name)
            else:
                assert mine == theirs, one.name
    slowed = SustainedSource(nominal, device, workload.precision).times(BATCH, degrees, strategies).seconds
    assert (slowed > nominal.times(BATCH, degrees, strategies).seconds).any() == (precision == "bf16")
