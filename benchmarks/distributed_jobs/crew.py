"""One rank that does what it is told: ``python -m benchmarks.distributed_jobs.crew SCENARIOS_JSON``.

All scenarios stay built, so that any of them can run at any time, in turns. A line of JSON on its input is an order, a
line of JSON on its output says that it is done.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.distributed_jobs.rank import SCHEMES, SETTLE, reference_s
from benchmarks.distributed_jobs.scenario import Scenario, from_dict
from cdmpp.trace import record
from cdmpp.trace.prober import probe

REPEATS = 16
"""Products of a reference."""
WARM = 2
"""Steps that do not count after other jobs have run."""
BEFORE, TRACED, AFTER = 3, 4, 2
"""Steps without the profiler, with it, and without it again."""


def built(scenario: Scenario) -> Callable[[], None]:
    """The step of a scenario, settled."""
    step = SCHEMES[scenario.scheme](scenario)
    for _ in range(SETTLE):
        step()
    return step


def timed(step: Callable[[], None], steps: int) -> dict[str, Any]:
    """Seconds of steps, the reference before and after them."""
    before_s = reference_s(REPEATS)
    for _ in range(WARM):
        step()
    dist.barrier()
    found = []
    for _ in range(steps):
        begin_s = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin_s)
    return {"steps_s": found, "reference_s": [before_s, reference_s(REPEATS)]}


def traced(step: Callable[[], None], folder: Path) -> dict[str, Any]:
    """The trace of some steps."""
    before_s = reference_s(REPEATS)
    for _ in range(WARM):
        step()
    dist.barrier()
    with record(folder, wait=BEFORE, steps=TRACED) as recorder:
        for _ in range(BEFORE + 1 + TRACED + AFTER):
            step()
            recorder.step()
    return {"steps_s": recorder.steps_s, "reference_s": [before_s, reference_s(REPEATS)]}


def main() -> None:
    scenarios = [from_dict(one) for one in json.loads(sys.argv[1])]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)] if world > 2 else []
    steps = {one.name: built(one) for one in scenarios}
    gc.collect()
    gc.disable()
    print(json.dumps({"ready": list(steps)}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        told: dict[str, Any] = {}
        if "probe" in order:
            group = pairs[rank // 2] if order["ranks"] < world else None
            probe(order["probe"], order["kinds"], order["budget_s"], group)
        elif "trace" in order:
            told = traced(steps[order["name"]], Path(order["trace"]))
        else:
            told = timed(steps[order["name"]], order["steps"])
        dist.barrier()
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
