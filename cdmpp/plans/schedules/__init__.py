"""Schedules of pipelines, one a file. A new file that registers its class is found by plans and files."""

from cdmpp.plans.schedules.registry import LOOPED, SCHEDULES

SCHEDULES.load(__name__, list(__path__))

__all__ = ["LOOPED", "SCHEDULES"]
