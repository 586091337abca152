"""Links of another bandwidth."""

from __future__ import annotations

import pytest

from cdmpp.steps.transforms.links import scale_bandwidth
from tests.steps.toy_traced import job, step_s


def test_the_last_bucket_is_exposed():
    assert step_s(job()) == pytest.approx(4 + 8 + 1 + 0.5)


def test_a_slower_link():
    assert step_s(scale_bandwidth(job(), 0.5)) == pytest.approx(4 + 8 + 2 + 0.5)
    slow = step_s(scale_bandwidth(job(), 0.1))  # 40 s of wire from the first gradient on
    assert slow == pytest.approx(4 + 2 + 40 + 0.5)
    fixed = step_s(scale_bandwidth(job(latency_s=0.25), 0.5))  # 2.25 s each, one after the other
    assert fixed == pytest.approx(4 + 2 + 4 * 2.25 + 0.5, rel=1e-5)
