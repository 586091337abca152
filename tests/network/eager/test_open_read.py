"""One read for all batches says what a network read at each of them does, and refuses where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.open_read import is_open, plain_open_read, read_at
from cdmpp.network.eager.plain_read import plain_read
from cdmpp.network.eager.read import read_run
from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.network.workload import Workload
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import OperatorTasks, task_id


def stored(low: EagerNetwork, high: EagerNetwork) -> dict:
    return json.loads(json.dumps(plain_open_read(low, high)))


@pytest.mark.parametrize("place", ["sm_90", "gfx908"])  # attention as one kernel, and in parts that are flat
def test_it_is_what_is_read_at_each_batch(place):
    def at(batch: int) -> EagerNetwork:
        return read_run(Workload("bert_tiny", batch=batch, sequence=24), place)

    found = stored(at(2), at(64))
    assert is_open(found) and not is_open(plain_read(at(2)))
    for batch in (2, 3, 7, 33, 64):
        direct = at(batch)
        assert read_at(found, batch) == direct
        assert json.dumps(plain_read(read_at(found, batch))) == json.dumps(plain_read(direct))  # in this order
        assert dict(read_at(found, batch).graph.tasks) == dict(direct.graph.tasks)


@pytest.mark.parametrize("batch", [1, 0, -2, 65, 2**40])
def test_it_says_nothing_beyond_its_batches(batch):
    assert read_at(stored(network(2), network(64)), batch) is None


def network(batch: int, *others: EagerOperator, output_bytes: int = 0) -> EagerNetwork:
    """A call that grows, one that does not and is equal to it at batch 8, and ``others``."""
    made = [EagerOperator("relu", {"rows": 2 * batch, "cols": 64}), EagerOperator("relu", {"rows": 16, "cols": 64})]
    made += others
    operators: dict[str, EagerOperator] = {}
    calls = []
    for place, one in enumerate(made):
        operators.setdefault(task_id(one), one)
        size = output_bytes or int(one.written_bytes)
        calls.append(Call(f"relu#{place}", task_id(one), (place - 1,) if place else (), size))
    graph = NetworkGraph("made", tuple(calls), OperatorTasks(operators, "made"), 0, 0, 512 * batch, (1,))
    return EagerNetwork(
        graph=graph, batch=batch, precision="fp32", warnings=(), operators=operators, stand_ins={},
    )  # fmt: skip


def test_operators_that_are_equal_at_a_batch_are_one():
    found = stored(network(2), network(64))
    assert [len(read_at(found, batch).operators) for batch in (7, 8, 9)] == [2, 1, 2]
    for batch in (7, 8, 9):
        assert read_at(found, batch) == network(batch)


@pytest.mark.parametrize("length", [20_000.5, 300.0, 5_000_000.0])
def test_flat_operators_follow_from_their_elements(length):
    """Their shape is another one from some batch on, and its last row is filled up."""

    def at(batch: int) -> EagerNetwork:
        return network(batch, EagerOperator.flat("copy", batch * length))

    found = stored(at(2), at(1000))
    for batch in (2, 3, 55, 56, 999):
        assert read_at(found, batch) == at(batch)
        assert plain_read(read_at(found, batch)) == plain_read(at(batch))


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [
        (network(2), network(64, EagerOperator("relu", {"rows": 1, "cols": 1})), "batch 2"),
        (network(2, output_bytes=10), network(4, output_bytes=11), "10 at batch 2 is 11 at 4"),
        (network(2), replace(network(4), warnings=("other",)), "batch 2"),
        (network(2), replace(network(4), precision="fp16"), "fp32 at batch 2 is fp16 at 4"),
        (network(2), replace(network(4), alive_bytes=1), "None at batch 2 is 1 at 4"),
        (
            network(2, EagerOperator("relu", {"rows": 1, "cols": 1})),
            network(4, EagerOperator("neg", {"rows": 1, "cols": 1})),
            "relu at batch 2 is neg at 4",
        ),
    ],
)
def test_reads_that_differ_in_more_than_numbers_on_a_line_are_refused(low, high, named):
    with pytest.raises(CdmppError, match=named):
        plain_open_read(low, high)
