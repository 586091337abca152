"""Parameter servers and synchronies beside public measurements: sections of ``docs/results/parameter-servers.md``."""

SECTIONS = ("tf", "adsp")
"""Modules of this folder that judge public figures, in the order of the page."""
