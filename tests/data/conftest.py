"""Records and tasks by hand, and a few lines of a real database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdmpp.data.schema import Record
from cdmpp.programs.task import Task


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    """No test reads or fills the user's cache, nor finds the user's data."""
    (cache := tmp_path / "cache").mkdir()
    monkeypatch.setenv("CDMPP_CACHE", str(cache))
    monkeypatch.delenv("CDMPP_DATA", raising=False)
    return cache


@pytest.fixture
def make_record() -> Callable[..., Record]:
    def make(number: int = 0, **fields) -> Record:
        values = {
            "record_id": f"{number:016x}",
            "task_id": "t0",
            "device": "a100",
            "target": '{"kind":"cuda"}',
            "schedule": "[[],[]]",
            "latency_samples_s": (2e-3, 1e-3, 4e-3),
            "latency_s": 2e-3,
            "statistic": "median",
        }
        return Record(**{**values, **fields})

    return make


@pytest.fixture
def task() -> Task:
    return Task("t0", "conv", "conv2d", "text", 2.0, 4.0, {"resnet34": 2}, "test")
