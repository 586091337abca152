"""Partitions: a network cut over devices that may differ, the schedules in which the parts train, and real runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.partition.processes.job import Trained


def train(module: Any, cuts: Any, schedule: Any, *given: Any, **options: Any) -> Trained:
    """Train a network that is cut into stages with real processes, as ``processes.job.train`` says. Needs torch."""
    from cdmpp.partition.processes.job import train as start

    return start(module, cuts, schedule, *given, **options)
