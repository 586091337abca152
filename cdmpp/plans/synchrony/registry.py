"""SYNCHRONIES: the kinds of synchronisation that are known."""

from __future__ import annotations

from cdmpp.plans.registry import Registry
from cdmpp.steps.synchrony import Synchrony

SYNCHRONIES: Registry[Synchrony] = Registry("synchrony")
