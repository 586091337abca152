"""Causes name what was planted."""

from __future__ import annotations

import pytest

from cdmpp.steps.transforms.links import scale_bandwidth
from cdmpp.trace.diagnosis import diagnose
from tests.steps.toy_traced import job


def test_causes_are_those_that_were_planted():
    found = diagnose(job(slow=1.2))
    names = [cause.name for cause in found]
    assert names[0] == "straggler rank 1"
    assert found[0].seconds == pytest.approx(0.2 * 12)
    assert "longer: op 4, backward" in found[0].spans[0]
    found = diagnose(scale_bandwidth(job(), 0.1))
    assert found[0].name == "exposed communication" and found[0].seconds == pytest.approx(34, rel=1e-4)
    assert "waits for exchange 3" in " ".join(found[0].spans)
    found = diagnose(job(gap_s=5.0))
    assert found[0].name == "idle gaps" and found[0].seconds == pytest.approx(20) and "linear" in found[0].spans[0]
    found = diagnose(job(latency_s=4.0))
    assert {"small messages", "exposed communication"} <= {cause.name for cause in found[:2]}
