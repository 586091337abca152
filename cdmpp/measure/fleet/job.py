"""A job: the programs of one task on one device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """A job asks for records of all programs that ``spec`` names of one task, on one device."""

    device: str
    task_id: str
    spec: str
    """JSON: ``{"n": programs, "seed": seed}`` of schedules to sample, or ``{"schedules": [...]}``, the very ones."""
    attempts: int = 0
    """So many times it was begun in vain."""

    @property
    def job_id(self) -> str:
        """Hash of what is asked for: the same from every client, so that a job is queued once."""
        text = json.dumps([self.device, self.task_id, self.spec])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @staticmethod
    def sampled(device: str, task_id: str, n: int, seed: int) -> Job:
        """Ask for ``n`` schedules drawn from ``seed``."""
        return Job(device, task_id, json.dumps({"n": n, "seed": seed}))

    @staticmethod
    def given(device: str, task_id: str, schedules: Sequence[str]) -> Job:
        """Ask for these schedules."""
        return Job(device, task_id, json.dumps({"schedules": list(schedules)}))

    @property
    def asked(self) -> dict[str, Any]:
        """Return ``spec`` as an object."""
        asked: dict[str, Any] = json.loads(self.spec)
        return asked
