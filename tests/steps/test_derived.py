"""Copies without checks: the same as ``replace`` makes, and nothing that was worked out from the old values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.derived import derived
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.step_graph import Gradient, Op


def test_copies_are_those_of_replace():
    op = Op("a", "forward", 1.0, output_bytes=5, inputs=(1, 2))
    assert derived(op, inputs=(0,), phase="backward") == replace(op, inputs=(0,), phase="backward")
    one = Gradient("w", 8, 3)
    assert derived(one) == one and derived(one) is not one


def test_what_was_worked_out_is_not_copied():
    layers = [Layer(f"l{i}", 1e-3, 2e-3, size, 10) for i, size in enumerate((4, 8))]
    (rank,) = graph_of_layers(layers).ranks
    assert [one.bytes for one in rank.ready_order] == [8, 4] and rank.busy_s > 0
    swapped = derived(rank, gradients=rank.gradients[:1])
    assert [one.bytes for one in swapped.ready_order] == [4]
    assert swapped == replace(rank, gradients=rank.gradients[:1])


def test_gradients_of_no_backward_op_are_refused_each_time():
    (rank,) = graph_of_layers([Layer("l", 1e-3, 2e-3, 4, 10)]).ranks
    wrong = replace(rank, gradients=(replace(rank.gradients[0], ready_after=0),))
    for _ in range(2):
        with pytest.raises(DataError, match="not in the backward pass"):
            wrong.check_gradients()
