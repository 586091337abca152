"""Collectives out of timed messages: by hand, and files that are no such curve."""

from __future__ import annotations

import pytest

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.machine_link import machine_link
from cdmpp.collectives.messages import read_messages
from cdmpp.collectives.topology import by_messages, topology_of
from cdmpp.errors import CdmppError

TABLE = "bytes,seconds\n1000,1e-3\n3000,2e-3\n2000,1e-3\n"


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "links.csv"
    file.write_text(TABLE)
    return file


def test_a_ring_is_made_of_messages(table):
    """All-reduce of 4 ranks: 6 steps of a quarter; 10,000 bytes are 2,500 a step, halfway from 1 to 2 ms."""
    links = by_messages(read_messages(table), 4)
    assert links.whole(Collective("all_reduce", 10_000, 4)).latency_s == pytest.approx(6 * 1.5e-3)
    assert links.whole(Collective("all_gather", 8_000, 4)).latency_s == pytest.approx(3 * 1e-3)
    assert links.cost(Collective("send_recv", 5_000, 2), (0, 3)).latency_s == pytest.approx(4e-3)
    assert links.cost(Collective("all_reduce", 4_000, 2), (1, 2)).latency_s == pytest.approx(2 * 1e-3)
    assert links.near_rate == pytest.approx(2e6)


def test_sizes_far_from_the_timed_ones_are_flagged(table):
    links = by_messages(read_messages(table), 2)
    assert links.whole(Collective("send_recv", 4_000, 2)).flags == ()
    assert (
        "a message has 30,000 bytes, 10 times beyond those that were timed"
        in links.whole(Collective("send_recv", 30_000, 2)).flags[0]
    )


def test_a_link_may_be_such_a_file(table):
    links = topology_of(3, "a100", link=str(table))
    assert (links.name, links.ranks, links.backend) == ("timed messages", 3, "nccl")
    assert links.cost(Collective("send_recv", 2_000, 2), (0, 2)).latency_s == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "two or more sizes"),
        ("bytes,seconds\n1,1\n", "two or more sizes"),
        ("size,seconds\n1,1\n2,2\n", "expected a line bytes,seconds"),
        ("bytes,seconds\n1,fast\n", "expected a line bytes,seconds, then numbers"),
        ("bytes,seconds\n1,1\n1,2\n", "sizes must be positive and rise"),
        ("bytes,seconds\n1,1\n2\n", "expected a line bytes,seconds"),
    ],
)
def test_files_that_are_no_curve_are_refused(tmp_path, text, message):
    (tmp_path / "links.csv").write_text(text)
    with pytest.raises(CdmppError, match=message):
        read_messages(tmp_path / "links.csv")


def test_a_link_of_proportional_messages_has_no_start_and_takes_what_was_timed(tmp_path):
    """The smallest timed message is long: its own bytes are no part of the start."""
    file = tmp_path / "links.csv"
    file.write_text("bytes,seconds\n1000000,0.01\n10000000,0.1\n")
    link = machine_link(str(file))
    assert link.alpha_s == pytest.approx(0.0, abs=2e-5)
    assert [link.seconds(size) for size in (1e6, 1e7, 1e8)] == pytest.approx([0.01, 0.1, 1.0], rel=2e-3)
    file.write_text("bytes,seconds\n1000000,0.013\n10000000,0.103\n")
    link = machine_link(str(file))
    assert link.alpha_s == pytest.approx(0.003, rel=1e-2)
    assert [link.seconds(size) for size in (1e6, 1e7, 1e8)] == pytest.approx([0.013, 0.103, 1.003], rel=2e-3)
