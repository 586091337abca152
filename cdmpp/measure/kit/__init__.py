"""Offline measurement kits: built here, timed where no compiler or network is, and merged into records here."""
