"""How the time of a link is divided among exchanges that share it, and messages that wait for each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdmpp.trace.link_share import alone_s, links_of, queue_of
from cdmpp.trace.matching import Together


def message(group: str, arrival_s: float, end_s: float, kind: str = "send_recv", n_bytes: int = 4) -> Together:
    ranks = [int(rank) for rank in group.split("->")] if "->" in group else [0, 1]
    spans = {rank: SimpleNamespace(start_s=arrival_s, end_s=end_s) for rank in ranks}
    return Together(kind, n_bytes, group, spans)


def test_two_that_share_a_way_in_have_half_of_it_each():
    step = [message("1->0", 0.0, 2.0), message("2->0", 0.0, 3.0)]
    assert alone_s(step) == pytest.approx([1.0, 2.0])


def test_a_message_waits_for_the_one_before_it_between_the_same_ranks():
    first, behind, other = message("2->0", 0.0, 1.0), message("2->0", 0.0, 1.1), message("1->0", 1.2, 1.3)
    assert alone_s([first, behind, other]) == pytest.approx([1.0, 0.1, 0.1])
    assert alone_s([behind, other, first]) == pytest.approx([0.1, 0.1, 1.0])


def test_what_the_receiver_sends_delays_its_word_that_it_is_there():
    pull, push = message("0->2", 0.0, 1.0), message("2->0", 0.4, 1.01)
    assert alone_s([pull, push]) == pytest.approx([1.0, 0.01])
    assert queue_of("send_recv", "2->0") == queue_of("send_recv", "0->2") == "0-2" != queue_of("send_recv", "0->1")


def test_collectives_queue_nowhere():
    assert queue_of("all_reduce", "0") == "" and len(links_of([0, 1], "all_reduce", "0")) == 4
    step = [message("world", 0.0, 2.0, "all_reduce"), message("world", 0.0, 2.0, "all_reduce")]
    assert alone_s(step) == pytest.approx([1.0, 1.0])
