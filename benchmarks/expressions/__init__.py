"""Fitted expressions of run times beside public and own measurements: sections of ``docs/results/expressions.md``."""

SECTIONS = ("placements", "left_out", "layouts", "throughput", "sweep", "planted", "frameworks", "inner", "speed")
"""Modules of this folder that judge tables of runs, in the order of the page."""
