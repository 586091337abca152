"""Balanced cuts next to all cuts that there are."""

from __future__ import annotations

import itertools
import random

import pytest

from cdmpp.plans.balance import balanced


def parts(until_s, cut_s, cuts):
    ends = [0, *cuts, len(until_s) - 1]
    each = [0.0, *cut_s[1:-1], 0.0]
    return [until_s[b] - until_s[a] + each[a] + each[b] for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cuts_make_the_longest_part_shorter_or_the_rest_more_equal(seed):
    random.seed(seed)
    until_s = [0.0, *itertools.accumulate(random.choice((1.0, 2.0, 5.0)) for _ in range(8))]
    cut_s = [random.choice((0.0, 0.5)) for _ in until_s]
    for count in (1, 2, 3, 5):
        found = balanced(until_s, cut_s, count)

        def cost(cuts):
            own = parts(until_s, cut_s, cuts)
            return max(own), sum(one**2 for one in own)

        assert cost(found) == min(map(cost, itertools.combinations(range(1, len(until_s) - 1), count - 1)))


def test_by_hand():
    """Lengths 4, 1, 1, 4: two parts of 5; three of 4, 2, 4; where a cut costs much, one part is as good."""
    until_s = [0.0, 4.0, 5.0, 6.0, 10.0]
    assert balanced(until_s, [0.0] * 5, 1) == ()
    assert balanced(until_s, [0.0] * 5, 2) == (2,)
    assert balanced(until_s, [0.0] * 5, 3) == (1, 3)
    assert balanced(until_s, [0.0, 0.0, 3.0, 0.0, 0.0], 2) == (1,)
