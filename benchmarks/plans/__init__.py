"""The oracle of plans beside public measurements and real runs: sections of ``docs/results/plans.md``.

A section is a module of this folder with one function ``tables(data)``: it reads the public figures below ``data``,
asks the product and returns tables as ``benchmarks.publish.measured`` keeps them.
"""

SECTIONS = ("gloo", "paradl", "alpa", "sailor")
"""Modules of this folder, in the order of the page."""
