"""Kinds of synchronisation, one a file. A new file that registers its class is found by files and command line."""

from cdmpp.plans.synchrony.registry import SYNCHRONIES

SYNCHRONIES.load(__name__, list(__path__))

__all__ = ["SYNCHRONIES"]
