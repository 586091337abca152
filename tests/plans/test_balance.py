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


@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3])
def test_of_equal_choices_the_earliest_cuts_whatever_rounding_does(scale):
    """Ten layers in four parts: 2, 2, 3 and 3 in any order; the first parts are the small ones."""
    until_s = [0.0, *itertools.accumulate([scale] * 10)]
    assert balanced(until_s, [0.0] * 11, 4) == (2, 4, 7)
    assert balanced(until_s, [0.0] * 11, 6) == (1, 2, 4, 6, 8)


@pytest.mark.parametrize("seed", range(20))
def test_ties_of_units_are_cut_as_those_of_their_fractions(seed):
    """Seconds of whole numbers add up exactly; their seventh parts do not, and are cut at the same places."""
    random.seed(seed)
    units = [random.choice((1, 2, 3)) for _ in range(24)]
    whole = [0.0, *itertools.accumulate(map(float, units))]
    parts_s = [0.0, *itertools.accumulate(one / 7 for one in units)]
    for count in (2, 5, 9, 16):
        assert balanced(parts_s, [0.0] * 25, count) == balanced(whole, [0.0] * 25, count)


def test_choices_that_are_as_good_are_compared_with_all_there_are():
    """Of all cuts with the same longest part and the same squares, the first in order is chosen."""
    until_s = [0.0, *itertools.accumulate([0.1, 0.2, 0.1, 0.1, 0.2, 0.1, 0.1, 0.2])]
    for count in (2, 3, 4, 5):

        def cost(cuts):
            own = parts(until_s, [0.0] * 9, cuts)
            return round(max(own), 9), round(sum(one**2 for one in own), 9)

        choices = [*itertools.combinations(range(1, 8), count - 1)]
        assert balanced(until_s, [0.0] * 9, count) == min(choices, key=lambda cuts: (cost(cuts), cuts))
