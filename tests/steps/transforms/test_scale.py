"""Another kernel, and more ranks."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.steps.transforms.scale import scale_kernel, scale_ranks
from tests.steps.toy_traced import job, step_s


def test_a_faster_kernel_on_all_ranks():
    assert step_s(scale_kernel(job(), "lin", 0.5)) == pytest.approx(step_s(job()) - 2)
    with pytest.raises(CdmppError, match=r"'conv' in its name; the longest are backward, linear"):
        scale_kernel(job(), "conv", 0.5)


def test_more_ranks_move_more():
    four = scale_ranks(job(latency_s=0.25), 4)
    assert [rank.rank for rank in four.ranks] == [0, 1, 2, 3]
    assert four.exchanges[0].wire_s == pytest.approx(3 * 0.25 + 1.5, rel=1e-5)
