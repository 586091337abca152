"""SCHEDULES, LOOPED: the schedules of pipelines that are known."""

from __future__ import annotations

from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.registry import Registry
from cdmpp.steps.schedule import Schedule

SCHEDULES: Registry[Schedule] = Registry("pipeline schedule")
"""Those whose ranks have a stage each."""
LOOPED: Registry[LoopedSchedule] = Registry("pipeline schedule of several stages a rank")
"""Those whose ranks may have several stages, or divide backward passes."""
