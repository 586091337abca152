"""A server in this process, whose questions child processes answer, and a server of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SMALL = {"processes": 1, "plan_processes": 1, "body_mb": 2.0, "time_s": 500.0, "plan_time_s": 500.0, "memory_gb": 6.0}
PATIENT = ("--processes", "1", "--plan-processes", "1", "--body-mb", "2", "--time-s", "500", "--plan-time-s", "500",
           "--drain-s", "500")  # fmt: skip
"""Other work may share the cores: no test is about time but those that say so."""


@pytest.fixture(scope="session")
def asked() -> Iterator[Callable[..., object]]:
    """Ask a server within this process: ``asked(method, address, **options)`` of httpx."""
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from cdmpp.serve.app import make_app
    from cdmpp.serve.settings import ServeSettings

    with TestClient(make_app(ServeSettings(**SMALL)), raise_server_exceptions=False) as client:
        for _ in range(2000):
            if client.get("/v1/health").status_code == 200:
                break
            time.sleep(0.2)
        yield client.request


class Served:
    """A server process."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log, self.scratch = folder / "log.txt", folder / "scratch"
        self.scratch.mkdir()
        here = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.scratch)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cdmpp.cli", "serve", "--port", "0", *words],
            cwd=folder, env=os.environ | here, stderr=self.log.open("wb"), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = ""
        for _ in range(2000):
            if found := re.search(r"https?://[\d.]+:\d+", self.log.read_text()):
                self.url = found[0]
                break
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def wait_until_ready(self, **headers: str) -> None:
        import httpx

        for _ in range(2000):
            try:
                if httpx.get(f"{self.url}/v1/health", timeout=5, headers=headers).status_code == 200:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)
        raise AssertionError(self.log.read_text())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(500)


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[Served]:
    """A server process with one process for each kind of question."""
    pytest.importorskip("uvicorn")
    made = Served(tmp_path_factory.mktemp("served"), *PATIENT)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.stop()
