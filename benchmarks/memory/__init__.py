"""Memory of plans beside public measurements of large jobs: sections of ``docs/results/plan-memory.md``."""

PAGES = {"plan-memory": ("megatron", "nanotron")}
"""Page -> modules of this folder, in the order of the page."""
