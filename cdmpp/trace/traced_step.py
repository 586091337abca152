"""TracedStep: one step of a job as it was measured, and as its own replay says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.steps.replay import replay
from cdmpp.trace.folder import TracedJob
from cdmpp.trace.matching import length_s
from cdmpp.trace.median_step import step_of

_MOST_OPS = 200_000
"""Ops of all ranks and steps that are replayed one step at a time."""


@dataclass(frozen=True)
class TracedStep:
    """This is one step, on all ranks."""

    number: int
    host_s: float
    """Seconds between the marks of the host, mean over ranks."""
    measured_s: float
    """Seconds as the marks say, or as the device needs where that is longer."""
    replayed_s: float | None
    """Seconds of its replay; None where it was not replayed."""


def traced_steps(job: TracedJob) -> tuple[TracedStep, ...]:
    """Return every whole step of a job on devices, each replayed by itself; nothing for operators of a host."""
    if any(one.host_s is None for step in job.steps for one in step.values()):
        return ()
    found, ops = [], 0
    for step in job.steps:
        replayed_s = None
        ops += sum(len(one.ops) for one in step.values())
        if ops <= _MOST_OPS:
            try:
                replayed_s = replay(step_of([step], job.traces)).step_s
            except CdmppError:  # its exchanges do not match
                pass
        host_s = float(np.mean([one.host_s for one in step.values() if one.host_s is not None]))
        found.append(TracedStep(next(iter(step.values())).number, host_s, length_s(step), replayed_s))
    return tuple(found)
