"""Programs of a folder that need no more work: those recorded, and those that failed."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

from cdmpp.platform.files import append_lines, read_entries


class Journal:
    """A journal knows a device's finished programs in ``folder``; ``failures`` gets each failure as it happens."""

    def __init__(self, folder: Path, device: str, failures: str) -> None:
        self.failures = folder / failures
        self.device = device
        self.recorded: set[str] = set()
        self.failed: set[str] = set()
        self.per_task: collections.Counter[str] = collections.Counter()  # recorded or failed programs of a task
        self.causes: collections.Counter[str] = collections.Counter()  # of this run
        for entry in read_entries(self.failures, device):
            if ":" not in entry["id"]:  # not a whole task or network
                self.failed.add(entry["id"])
                self.per_task[entry["task_id"]] += 1

    def __contains__(self, record_id: str) -> bool:
        return record_id in self.recorded or record_id in self.failed

    def record(self, record_id: str, task_id: str) -> None:
        """Note that a program is recorded."""
        self.recorded.add(record_id)
        self.per_task[task_id] += 1

    def fail(self, key: str, task_id: str, reply: dict[str, Any]) -> None:
        """Note that a program failed, or a ``task:`` or ``network:``; ``reply`` holds its ``cause``."""
        self.causes[reply["cause"]] += 1
        self.failed.add(key)
        append_lines(self.failures, [{"id": key, "task_id": task_id, "device": self.device, **reply}])
