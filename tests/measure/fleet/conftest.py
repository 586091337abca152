"""Fixtures of the tests of fleets."""

from tests.measure.fleet.make_believe import fleet as fleet
