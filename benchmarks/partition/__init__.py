"""Partitions of public layer profiles: sections of ``docs/results/partition.md``."""

SECTIONS = ("pipedream",)
"""Modules of this folder that judge public figures, in the order of the page."""
