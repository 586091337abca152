"""One scenario, run: its row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.link import carried_mbit
from benchmarks.distributed_jobs.namespaces import Place, links
from benchmarks.distributed_jobs.rank import TRACED
from benchmarks.distributed_jobs.scenario import Scenario
from cdmpp.trace.folder import read_job, read_recordings
from cdmpp.trace.graph_file import graph_to_dict

LIMIT_S = 180
REPOSITORY = Path(__file__).parents[2]


def measure(scenario: Scenario, steps: int, keep: Path | None = None) -> dict[str, Any]:
    """Run it and read its traces; ``keep``: a folder for them.

    Raises:
        RuntimeError: a rank that failed or did not end, with its last words.
    """
    begin_s = time.time()
    with tempfile.TemporaryDirectory() as scratch, links(scenario.ranks, scenario.mbit) as places:
        folder = keep / scenario.name if keep else Path(scratch) / "traces"
        shutil.rmtree(folder, ignore_errors=True)
        carried = carried_mbit(places, scenario.pins)
        run(scenario, places, folder, steps)
        graph = read_job(folder)
        recordings = read_recordings(folder)
        told = [json.loads((folder / f"rank{rank}.told").read_text()) for rank in range(scenario.ranks)]
    quartiles = np.percentile(
        [s for one in recordings for s in one.steps_s[1 : one.profiled[0]] + one.steps_s[one.profiled[1] + 1 :]],
        (25, 50, 75),
    )
    return {
        "name": scenario.name,
        "scenario": scenario.to_dict(),
        "at": begin_s,
        "carried_mbit": carried,
        "took_s": time.time() - begin_s,
        "unprofiled_s": graph.measured.unprofiled_s,
        "quartiles_s": quartiles.tolist(),
        "before_s": [one.before_s for one in recordings],
        "after_s": [one.after_s for one in recordings],
        "reference_s": [one["reference_s"] for one in told],
        "traced_steps": TRACED,
        "recording": asdict(recordings[0]) | {"steps_s": []},
        "job": graph_to_dict(graph),
    }


def run(scenario: Scenario, places: tuple[Place, ...], folder: Path, steps: int) -> None:
    """All ranks at once, each on its core with one thread."""
    shared = {**os.environ, "MASTER_ADDR": places[0].address, "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1",
              "GLOO_SOCKET_IFNAME": "eth0", "WORLD_SIZE": str(scenario.ranks), "PYTHONPATH": str(REPOSITORY),
              "KINETO_LOG_LEVEL": "5"}  # fmt: skip
    children = []
    for rank, (place, core) in enumerate(zip(places, scenario.pins, strict=True)):
        words = [*place.command, "taskset", "-c", str(core), sys.executable, "-m", "benchmarks.distributed_jobs.rank"]
        words += [json.dumps(scenario.to_dict()), str(folder), str(steps)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed below, after its last words are read)
        child = subprocess.Popen(words, env={**shared, "RANK": str(rank)}, stdout=log, stderr=log, cwd=REPOSITORY)
        children.append((child, log))
    end_s = time.time() + LIMIT_S
    try:
        while any(child.poll() is None for child, _ in children) and time.time() < end_s:
            if any(child.poll() for child, _ in children):
                break
            time.sleep(0.05)
        for rank, (child, log) in enumerate(children):
            if child.poll() is None:
                child.wait(timeout=5 if time.time() < end_s else 0)
            if child.returncode:
                log.seek(0)
                raise RuntimeError(f"rank {rank} of {scenario.name}: {log.read().decode()[-1500:]}")
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{scenario.name} did not end within {LIMIT_S} s") from None
    finally:
        for child, log in children:
            child.kill()
            child.wait()
            log.close()
