"""Memory of plans beside public measurements of large jobs: sections of ``docs/results/plan-memory.md``."""

SECTIONS = ("megatron", "nanotron")
"""Modules of this folder, in the order of the page."""
