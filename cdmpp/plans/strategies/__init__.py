"""Parallel strategies, one a file. A new file that registers its class is found by search, files and command line."""

from cdmpp.plans.strategies.registry import STRATEGIES

STRATEGIES.load(__name__, list(__path__))

DEFAULT_STRATEGY = "ddp"
"""The strategy where none is named."""

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES"]
