"""A trace of a gigabyte: seconds and memory of its events, of all up to the traced steps, and to their median.

Called as ``python benchmarks/trace_reading.py RESULT.json MEGABYTES`` by ``run.py``. The trace is one step of a made-up
GPU job, written again and again: operators with Python calls around them, launches, kernels, copies and collectives.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timing import finish, peak_memory_mb

from cdmpp.trace.folder import traced_job
from cdmpp.trace.kineto import rank_trace
from cdmpp.trace.scanned import scan

STEP_US, KERNELS = 200_000.0, 4000
MORE = {
    "registers per thread": 96, "shared memory": 42024, "blocks per SM": 0.025, "warps per SM": 0.4, "context": 1,
    "grid": [128, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %": 31, "queued": 0,
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 3:  # the child: a process whose memory is that of reading alone
            read(Path(sys.argv[3]))
            return
        file = Path(folder) / "trace.json"
        write(file, int(sys.argv[2]) * 10**6)
        subprocess.run([sys.executable, __file__, sys.argv[1], sys.argv[2], str(file)], check=True)


def write(file: Path, size: int) -> None:
    """Write steps until the file is of ``size`` bytes."""
    with file.open("w") as out:
        out.write('{"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "traceEvents": [')
        number = 0
        while out.tell() < size:
            out.write(", ".join(map(json.dumps, step(number))) + ", ")
            number += 1
        out.write(json.dumps({"ph": "M", "name": "end"}) + "]}")


def step(number: int) -> Iterator[dict[str, Any]]:
    """The events of one step, as PyTorch writes them."""
    begin, each = STEP_US * number, STEP_US / KERNELS

    def span(cat: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    yield span("user_annotation", f"ProfilerStep#{number}", begin, STEP_US, 1)
    for place in range(KERNELS):
        ts, link = begin + each * place, number * KERNELS + place
        for depth in range(3):
            told = {"Python parent id": depth, "Python id": link, "Ev Idx": link}
            yield span("python_function", f"model.py({depth}): forward", ts + depth, each - 2 * depth, 1, **told)
        yield span("cpu_op", f"aten::op_{place % 50}", ts + 3, each - 7, 1, **{"External id": link, "Ev Idx": link})
        yield span("cuda_runtime", "cudaLaunchKernel", ts + 5, 4.0, 1, correlation=link, cbid=211)
        ids = {"External id": link, "device": 0, "stream": 7, "correlation": link}
        is_collective = place % 40 == 39
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if is_collective else f"void kernel_{place % 50}<float>(int)"
        yield span("kernel", name, ts + 12, each - 2, 20 if is_collective else 7,
                   **ids | {"stream": 20 if is_collective else 7}, **MORE)  # fmt: skip


def read(file: Path) -> None:
    """Time the reader."""
    megabytes = file.stat().st_size / 1e6
    clocks = (time.perf_counter, time.process_time)
    begun = [clock() for clock in clocks]
    scanned = scan(file)
    took, events = [clock() - start for clock, start in zip(clocks, begun, strict=True)], scanned.events
    memory = peak_memory_mb()
    begun = [clock() for clock in clocks]
    trace = rank_trace(scanned)
    after = [clock() - start for clock, start in zip(clocks, begun, strict=True)]
    steps_memory = peak_memory_mb()
    begun = [clock() for clock in clocks]
    traced_job(file.parent, [trace])
    median = [clock() - start for clock, start in zip(clocks, begun, strict=True)]
    finish(
        {
            "megabytes": megabytes,
            "events": events,
            "steps": len(trace.steps),
            "read_s": took[0],
            "read_cpu_s": took[1],
            "read_memory_mb": memory,
            "steps_s": after[0],
            "steps_cpu_s": after[1],
            "steps_memory_mb": steps_memory,
            "median_s": median[0],
            "median_cpu_s": median[1],
            "memory_mb": peak_memory_mb(),
        }
    )


if __name__ == "__main__":
    main()
