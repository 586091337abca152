"""Chakra execution traces, the format of MLCommons that simulators such as ASTRA-sim run, and step graphs."""

from cdmpp.trace.chakra.reading import read_chakra
from cdmpp.trace.chakra.writing import write_chakra

__all__ = ["read_chakra", "write_chakra"]
