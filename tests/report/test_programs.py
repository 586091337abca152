"""The report on predicted programs, where no file describes the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp import devices
from cdmpp.predict.prediction import Prediction
from cdmpp.report.programs import programs_report


def test_a_device_that_no_file_describes_has_its_title_and_its_ranges():
    sheet = replace(devices.get("t4"), name="my-gpu", title="My GPU", ranges={"clock_mhz": (1000.0, 2000.0)})
    ends = {"clock_mhz": (np.array([2e-3]), np.array([1e-3]))}
    found = programs_report(Prediction(np.array([1.5e-3]), ("#0",), sheet, False, np.zeros(1), described=ends), "a100")
    assert found.title == "My GPU, model a100" and found.answer["device"] == "my-gpu"
    assert any("my-gpu is known by a range, clock_mhz from 1000 to 2000" in warning for warning in found.warnings)
