"""How the time of a link is divided among exchanges that share it, and messages that wait for each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.exchange import peers_of
from cdmpp.steps.exchange_tasks import links_of
from cdmpp.trace.link_sharing import begun_s, unshared_s
from cdmpp.trace.matching import MatchedCollective


def message(group: str, arrival_s: float, end_s: float, kind: str = "send_recv", n_bytes: int = 4) -> MatchedCollective:
    ranks = [int(rank) for rank in group.split("->")] if "->" in group else [0, 1]
    spans = {rank: SimpleNamespace(start_s=arrival_s, end_s=end_s) for rank in ranks}
    return MatchedCollective(kind, n_bytes, group, spans)


def test_two_that_share_a_way_in_have_half_of_it_each():
    step = [message("1->0", 0.0, 2.0), message("2->0", 0.0, 3.0)]
    assert unshared_s(step) == pytest.approx([1.0, 2.0])


def test_a_message_waits_for_the_one_before_it_between_the_same_ranks():
    first, behind, other = message("2->0", 0.0, 1.0), message("2->0", 0.0, 1.1), message("1->0", 1.2, 1.3)
    assert unshared_s([first, behind, other]) == pytest.approx([1.0, 0.1, 0.1])
    assert unshared_s([behind, other, first]) == pytest.approx([0.1, 0.1, 1.0])


def test_what_the_receiver_sends_delays_its_word_that_it_is_there():
    pull, push = message("0->2", 0.0, 1.0), message("2->0", 0.4, 1.01)
    assert unshared_s([pull, push]) == pytest.approx([1.0, 0.01])
    assert peers_of("send_recv", "2->0") == (2, 0)


def test_a_sender_that_goes_on_when_its_message_begins_to_move_is_not_held():
    """Both ways at once: the gradient moves from 0 to 1 s, then the result; its sender goes on at 1 s (torch 2.13)."""
    gradient, result = message("1->0", 0.0, 1.0), message("0->1", 0.0, 2.0)
    result.spans[0].end_s = 1.05
    step = [result, gradient]
    assert begun_s(step) == pytest.approx([1.0, 0.0])
    assert [one.held_sender(at) for one, at in zip(step, begun_s(step), strict=True)] == [False, True]
    result.spans[0].end_s = 1.9
    assert result.held_sender(1.0)


def test_collectives_queue_nowhere():
    assert peers_of("all_reduce", "0") is None and len(links_of([0, 1], None)) == 4
    assert links_of([0, 1], (0, 1)) == ("out 0", "in 1")
    with pytest.raises(DataError, match="SENDER->RECEIVER"):
        peers_of("send_recv", "0->here")
    step = [message("world", 0.0, 2.0, "all_reduce"), message("world", 0.0, 2.0, "all_reduce")]
    assert unshared_s(step) == pytest.approx([1.0, 1.0])
