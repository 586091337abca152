"""Kinds of synchronisation, one a file. A new file that registers its class is found by files and command line."""

from cdmpp.synchrony.registry import SYNCHRONIES, synchrony_of

SYNCHRONIES.load(__name__, list(__path__))

__all__ = ["SYNCHRONIES", "synchrony_of"]
