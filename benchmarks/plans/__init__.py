"""The oracle of plans beside public measurements and real runs: sections of ``docs/results/plans.md``."""

SECTIONS = ("gloo", "looped", "paradl", "alpa", "sailor", "torchtitan")
"""Modules of this folder, in the order of the page."""
