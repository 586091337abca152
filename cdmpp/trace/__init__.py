"""Traces of training jobs on several ranks: record, read, align, replay, ask what if, diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdmpp.steps.step_graph import StepGraph
    from cdmpp.trace.recorder import Recorder


def record(folder: Path | str, wait: int = 10, steps: int = 5) -> AbstractContextManager[Recorder]:
    """Record this rank into ``folder``, as ``recorder.record`` says. Needs torch."""
    from cdmpp.trace.recorder import record as start

    return start(folder, wait, steps)


def probe(folder: Path | str, kinds: Sequence[str] = ("all_reduce",), budget_s: float = 4.0) -> None:
    """Time the collectives of a job, as ``prober.probe`` says. Needs torch."""
    from cdmpp.trace.prober import probe as time_them

    time_them(folder, kinds, budget_s)


def read(folder: Path | str) -> StepGraph:
    """Read the median step of the job whose traces lie in ``folder``, as ``folder.read_job`` says."""
    from cdmpp.trace.folder import read_job

    return read_job(folder)
