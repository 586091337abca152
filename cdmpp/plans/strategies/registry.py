"""STRATEGIES: the parallel strategies that are known."""

from __future__ import annotations

from cdmpp.steps.registry import Registry
from cdmpp.steps.strategy import Strategy

STRATEGIES: Registry[Strategy] = Registry("parallel strategy")
