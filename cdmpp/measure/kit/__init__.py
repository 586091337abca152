"""Kits: programs built here, timed on a machine without compiler or network, and merged into records here."""
