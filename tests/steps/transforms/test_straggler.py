"""A step without its slowest rank."""

from __future__ import annotations

import pytest

from cdmpp.steps.transforms.straggler import without_straggler
from tests.steps.toy_traced import job, step_s


def test_no_straggler():
    assert step_s(job(slow=2.0)) == pytest.approx(8 + 16 + 1 + 0.5)
    assert step_s(without_straggler(job(slow=2.0))) == pytest.approx(step_s(job()))
    assert without_straggler(job()) == job()
