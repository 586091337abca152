"""The ``cdmpp`` command: one file a verb."""

from cdmpp.cli.command import main

__all__ = ["main"]
