"""What an exchange of other bytes takes, from the traced ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.steps.step_graph import Measured
from cdmpp.steps.wire import PAYLOAD, Wire, rescaled, slowed, wires
from tests.steps.toy_traced import MB, job


def test_a_wire_without_a_probe_is_a_line():
    both = replace(job(latency_s=0.5), measured=Measured())
    wire = wires(both)["all_reduce"]
    assert wire.latency_s == 0 and wire.at(MB) == pytest.approx(1.5)  # one size tells no latency
    mixed = replace(both, exchanges=(*both.exchanges, replace(both.exchanges[0], bytes=3 * MB, wire_s=3.5)))
    wire = wires(mixed)["all_reduce"]
    assert wire.latency_s == pytest.approx(0.5) and wire.at(2 * MB) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("kind", "factor", "need_s", "expected_s"),
    [
        ("all_reduce", 0.5, 0.4, 1.0),  # processors hold it up
        ("all_reduce", 0.5, 0.8, 1.6),
        ("all_reduce", 0.5, 1.2, 2.0),  # the link does, whatever it is said to carry
        ("all_reduce", 2.0, 0.4, 0.5),
        ("all_gather", 0.5, 0.4, 2.0),
    ],
)
def test_on_a_known_link_an_exchange_may_wait_for_processors(kind, factor, need_s, expected_s):
    one = replace(job().exchanges[0], kind=kind)
    carried = MB * (1.0 if kind == "all_reduce" else 0.5)  # of two ranks
    found = slowed(one, Wire(None, 0.0, 0.0), factor, carried / (PAYLOAD * need_s))
    assert found == pytest.approx(expected_s)


def test_a_broadcast_of_gloo_grows_with_the_rounds_of_its_tree():
    one = replace(job().exchanges[0], kind="broadcast")  # one second of two ranks
    wire = Wire(None, 0.25, 0.0)
    assert [rescaled(one, wire, ranks=ranks) for ranks in (2, 3, 4, 5, 8)] == pytest.approx([1, 2, 2, 3, 3])
    assert rescaled(one, replace(wire, backend="nccl"), ranks=4) == pytest.approx(3 * 0.25 + 0.75)
