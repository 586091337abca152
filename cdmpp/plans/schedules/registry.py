"""SCHEDULES: the schedules of pipelines that are known."""

from __future__ import annotations

from cdmpp.steps.registry import Registry
from cdmpp.steps.schedule import Schedule

SCHEDULES: Registry[Schedule] = Registry("pipeline schedule")
