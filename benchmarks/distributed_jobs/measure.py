"""One scenario, run: its row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.link import carried_mbit
from benchmarks.distributed_jobs.rank import TRACED
from benchmarks.distributed_jobs.scenario import Scenario
from cdmpp.synchrony.processes.namespaces import Place, links
from cdmpp.trace.folder import PROBE, read_job, read_recordings
from cdmpp.trace.graph_file import graph_to_dict

LIMIT_S = 180
REPOSITORY = Path(__file__).parents[2]


def measure(scenario: Scenario, steps: int, keep: Path | None = None) -> dict[str, Any]:
    """Run it and read its traces; ``keep``: a folder for them.

    Raises:
        RuntimeError: a rank that failed or did not end, with its last words.
    """
    return measure_all((scenario,), steps, keep)[0]


def measure_all(scenarios: Sequence[Scenario], steps: int, keep: Path | None = None) -> list[dict[str, Any]]:
    """Run scenarios of as many ranks on the same links, one after the other in the same processes: a row each."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        shared = run_all(scenarios, steps, folder)
        return [{**shared, **row_of(one, folder)} for one in scenarios]


def run_all(scenarios: Sequence[Scenario], steps: int, folder: Path) -> dict[str, Any]:
    """Run scenarios, each into a folder of its name; what their rows share."""
    begin_s, first = time.time(), scenarios[0]
    for one in scenarios:
        shutil.rmtree(folder / one.name, ignore_errors=True)
    with links([first.mbit] * first.ranks) as places:
        carried = carried_mbit(places, first.pins)
        run(scenarios, places, folder, steps)
    return {"at": begin_s, "carried_mbit": carried, "took_s": time.time() - begin_s}


def row_of(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """What the ranks of one scenario measured."""
    own = folder / scenario.name
    told = [json.loads((own / f"rank{rank}.told").read_text()) for rank in range(scenario.ranks)]
    row: dict[str, Any] = {"name": scenario.name, "scenario": scenario.to_dict()}
    row["reference_s"] = [one["reference_s"] for one in told]
    if (own / PROBE).exists():
        row["probe"] = json.loads((own / PROBE).read_text())
    if not scenario.is_traced:
        seconds = [s for one in told for s in one["steps_s"]]
        median_s = float(np.median([np.median(one["steps_s"]) for one in told]))
        return {**row, "unprofiled_s": median_s, "quartiles_s": np.percentile(seconds, (25, 50, 75)).tolist()}
    recordings, graph = read_recordings(own), read_job(own)
    seconds = [s for one in recordings for s in one.steps_s[1 : one.profiled[0]] + one.steps_s[one.profiled[1] + 1 :]]
    return {
        **row,
        "unprofiled_s": graph.measured.unprofiled_s,
        "quartiles_s": np.percentile(seconds, (25, 50, 75)).tolist(),
        "before_s": [one.before_s for one in recordings],
        "after_s": [one.after_s for one in recordings],
        "traced_steps": TRACED,
        "recording": asdict(recordings[0]) | {"steps_s": []},
        "job": graph_to_dict(graph),
    }


def run(scenarios: Sequence[Scenario], places: tuple[Place, ...], folder: Path, steps: int) -> None:
    """All ranks at once, each on its core with one thread."""
    scenario, limit_s = scenarios[0], LIMIT_S * len(scenarios)
    shared = {**os.environ, "MASTER_ADDR": places[0].address, "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1",
              "GLOO_SOCKET_IFNAME": "eth0", "WORLD_SIZE": str(scenario.ranks), "PYTHONPATH": str(REPOSITORY),
              "KINETO_LOG_LEVEL": "5"}  # fmt: skip
    children = []
    for rank, (place, core) in enumerate(zip(places, scenario.pins, strict=True)):
        words = [*place.command, "taskset", "-c", str(core), sys.executable, "-m", "benchmarks.distributed_jobs.rank"]
        words += [json.dumps([one.to_dict() for one in scenarios]), str(folder), str(steps)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed below, after its last words are read)
        child = subprocess.Popen(words, env={**shared, "RANK": str(rank)}, stdout=log, stderr=log, cwd=REPOSITORY)
        children.append((child, log))
    end_s = time.time() + limit_s
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
        raise RuntimeError(f"{scenario.name} did not end within {limit_s} s") from None
    finally:
        for child, log in children:
            child.kill()
            child.wait()
            log.close()
