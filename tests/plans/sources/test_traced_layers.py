"""Blocks whose times come out of a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.plans.lower import lower
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.sources.traced_layers import traced_layers
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import replay
from tests.plans.toy_pipeline import links, plan
from tests.steps.toy_traced import MB, job

BLOCKS = [Layer("first", 0.0, 0.0, MB, 1), Layer("rest", 0.0, 0.0, 3 * MB, 1)]


def test_blocks_take_what_their_operators_took_and_can_be_cut():
    """Four layers of 1 s forward and 2 s backward; the update of 0.5 s goes by parameters."""
    found = traced_layers(job(slow=1.5), BLOCKS, (1, 3))
    first, rest = ((one.forward_s, one.backward_s, one.update_s) for one in found)
    assert first == pytest.approx((1.25, 2.5, 0.125)) and rest == pytest.approx((3.75, 7.5, 0.375))
    under = plan(2, 1)
    step_s = replay(lower(TableSource(found), under, links(2), 1).graph, links(2)).step_s
    assert step_s == pytest.approx(1.25 + 3.75 + 7.5 + 2.5 + 0.125)


@pytest.mark.parametrize(
    ("blocks", "modules", "told"),
    [
        (BLOCKS, (1, 2), "4 operators of the trace read parameters, the blocks have 3"),
        (BLOCKS, (4,), "2 blocks, and numbers of modules of 1"),
        ([replace(BLOCKS[0], parameter_bytes=MB + 1), BLOCKS[1]], (1, 3), "gradients of .* bytes in the trace"),
    ],
)
def test_blocks_of_another_model_are_refused(blocks, modules, told):
    with pytest.raises(DataError, match=told):
        traced_layers(job(), blocks, modules)
