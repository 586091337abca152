"""A table of layers as a source: at measured numbers of examples, between and outside them, and what it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import SPLITS, StepTimes
from cdmpp.plans.sources.table import TableSource
from cdmpp.steps.from_layers import Layer

ONE = ParallelDegrees()
AT_2 = (
    Layer("embed", 0.0, 1.0, 100, 20, update_s=0.5, examples=2),
    Layer("head", 2.0, 4.0, 50, 10, saved_bytes=200, update_s=0.25, examples=2),
)
AT_4 = (
    Layer("embed", 1.0, 1.0, 100, 40, update_s=0.5, examples=4),
    Layer("head", 5.0, 8.0, 50, 20, saved_bytes=400, update_s=0.25, examples=4),
)
TABLE = TableSource((*AT_2, *AT_4))


def phases(source, batch):
    return source.work(batch, ONE).rank.phase_s


def test_measured_numbers_are_those_of_the_table():
    assert phases(TABLE, 2) == {"forward": 2.0, "backward": 5.0, "update": 0.75}
    assert phases(TABLE, 4) == {"forward": 6.0, "backward": 9.0, "update": 0.75}
    assert TABLE.work(4, ONE).warnings == ()


def test_between_two_numbers_all_is_on_a_line_and_outside_in_proportion():
    assert phases(TABLE, 3) == {"forward": 4.0, "backward": 7.0, "update": 0.75}
    assert [one.saved_bytes for one in TABLE.layers(3)] == [None, 300]
    assert phases(TABLE, 8) == {"forward": 12.0, "backward": 18.0, "update": 0.75}
    assert phases(TABLE, 1) == {"forward": 1.0, "backward": 2.5, "update": 0.75}
    assert TABLE.layers(8)[1] == replace(AT_4[1], forward_s=10.0, backward_s=16.0, output_bytes=40, saved_bytes=800,
                                         examples=8)  # fmt: skip
    (warning,) = TABLE.work(8, ONE).warnings
    assert warning == "layers were measured at 2 to 4 examples: those at 8 are in proportion to those at 4"
    (warning,) = TableSource(AT_2).work(1, ONE).warnings
    assert warning == "layers were measured at 2 examples: those at 1 are in proportion to those at 2"


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8])
def test_times_are_those_of_the_work(batch):
    found, expected = TABLE.times(batch, ONE), StepTimes.of(TABLE.work(batch, ONE))
    assert found.ops == expected.ops
    assert found.seconds == pytest.approx(expected.seconds)
    assert (found.once_s, found.low, found.high) == (expected.once_s, 1.0, 1.0)


def test_tables_that_run_other_ops_tell_no_times_in_between():
    one, *rest = AT_4
    source = TableSource((*AT_2, replace(one, update_s=0.0), *(replace(other, update_s=0.0) for other in rest)))
    assert source.times(3, ONE) is None
    assert source.times(4, ONE).seconds.sum() == source.work(4, ONE).rank.busy_s


def test_memory_is_parameters_gradients_states_and_what_layers_save():
    """When ``head`` has run backward 20 + 200 bytes are saved, and gradients of 20 and 50 bytes are there."""
    memory = TABLE.work(2, ONE).memory
    assert (memory.parameter_bytes, memory.gradient_bytes, memory.state_bytes) == (150, 150, 300)
    assert (memory.saved_activation_bytes, memory.live_bytes) == (220, 290)
    assert TableSource(AT_2, state_bytes=0).work(2, ONE).memory.state_bytes == 0


def test_a_stage_has_a_layer_at_least_and_none_is_divided():
    assert TABLE.limits() == {"pp": 2, **dict.fromkeys(SPLITS, 1)}
    told = "a table of layers does not tell what filter parallelism makes of its operators"
    with pytest.raises(CdmppError, match=told):
        TABLE.work(2, ParallelDegrees(filter=2))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "without layers"),
        ((*AT_2, AT_4[0]), "other layers at 4 examples than at 2: 1 layers against 2"),
        ((*AT_2, AT_4[1], AT_4[0]), "other layers at 4 examples than at 2: 'head' differs"),
        ((*AT_2, AT_2[0]), "layer 'embed' twice at 2 examples"),
    ],
)
def test_tables_that_do_not_go_together_are_refused(rows, message):
    with pytest.raises(CdmppError, match=message):
        TableSource(rows)
