"""Fixtures of the measuring tests."""

from tests.measure.machine import machine as machine
