"""A trace is read in one pass, within three times its size and 500 MB; numbers that a file claims allocate nothing."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trace.field_jobs import Trace, steps_of


def run(folder: Path, most: int, *options: str) -> subprocess.CompletedProcess:
    """The command, with so many bytes of address space."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return subprocess.run(
        [sys.executable, "-m", "cdmpp.cli", "trace", str(folder), *options],
        capture_output=True, text=True, preexec_fn=limited, check=False,
    )  # fmt: skip


def large(file: Path, size: int) -> None:
    """Copies of one step, one after the other."""
    trace = steps_of(Trace(), count=1)
    for place in range(2000):
        trace.span("cpu_op", f"aten::op_{place % 50}", 100 + 2 * place, 1, **{"External id": place, "Ev Idx": place})
    with file.open("w") as out:
        out.write('{"traceEvents": [')
        number = 0
        while out.tell() < size:
            for event in trace.events:
                moved = event | {"ts": event["ts"] + 5000 * number, "args": dict(event["args"])}
                if "correlation" in moved["args"]:
                    moved["args"]["correlation"] += 1000 * number
                if event["name"].startswith("ProfilerStep"):
                    moved["name"] = f"ProfilerStep#{number}"
                out.write(json.dumps(moved) + ",\n")
            number += 1
        out.write('{"ph": "M"}], "displayTimeUnit": "ms"}')


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are those of Linux")
def test_memory_is_a_multiple_of_the_file(tmp_path):
    file = tmp_path / "rank0.json"
    large(file, 40 * 10**6)
    done = run(tmp_path, 3 * file.stat().st_size + 500 * 10**6, "--check", "--json")
    assert done.returncode == 0, done.stderr
    (read,) = json.loads(done.stdout)["read"]
    assert read["device"]["kept"] == 4 * len(read["steps"]) > 400


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are those of Linux")
@pytest.mark.parametrize(
    ("key", "value"),
    [("world_size", 60_000), ("world_size", 2_000_000_000), ("rank", 10**18), ("world_size", 10**400)],
)
def test_a_number_in_a_file_allocates_nothing(tmp_path, key, value):
    trace = steps_of(Trace())
    trace.info[key] = value
    trace.save(tmp_path)
    done = run(tmp_path, 2 * 10**9)
    assert "MemoryError" not in done.stderr and done.returncode == (0 if value == 60_000 else 2), done.stderr
    assert ("rank 1-59999 of 60,000 are missing" in done.stderr) == (value == 60_000)
