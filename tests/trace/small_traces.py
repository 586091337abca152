"""Small traces made by hand: a data-parallel step of two layers, on CPUs with gloo and on GPUs with NCCL."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

STEP_US = 1000.0
"""Between the begins of two steps."""
ITEMS = 250
"""Floats of each of the two gradients: 1,000 bytes."""


def event(name: str, start: float, end: float, tid: object = 1, cat: str = "cpu_op", **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": end - start, "args": args}


def shaped(*shape: int) -> dict:
    return {"Input Dims": [list(shape)], "Input type": ["float"]}


def cpu_step(number: int, late: float = 0.0, base: float = 0.0) -> list[dict]:
    """Forward 0-100, backward of the second layer to 200, of the first to 300 + ``late``; each gradient is a bucket.

    The first bucket is on the wire from 210 to 260. The second one starts when the last rank is there: 310 + 50 (the
    rank that is late by 50), ends at 420, and is waited for; the update is from 440 to 500.
    """
    t = base + number * STEP_US
    engine = "autograd::engine::evaluate_function: "

    def gradient(start: float, done: float) -> list[dict]:
        name = "torch::autograd::AccumulateGrad"
        return [
            event(engine + name, start, done + 5),
            event(name, start, start + 2, **shaped(ITEMS)),
            event("torch::distributed::reducer::mul_out", start + 2, start + 5, **shaped(ITEMS)),
            event("c10d::allreduce_", start + 5, done + 4, **shaped(ITEMS)),
        ]

    found = [
        event(f"ProfilerStep#{number}", 0, 900, cat="user_annotation"),
        event("aten::linear", 0, 100),
        event("aten::addmm", 10, 90),
        event(engine + "AddmmBackward0", 100, 200),
        *gradient(200, 210),
        event(engine + "AddmmBackward0", 215, 300 + late),
        *gradient(300 + late, 310 + late),
        event("gloo:all_reduce", 210, 260, 2, "user_annotation", **shaped(ITEMS)),
        event("gloo:all_reduce", 310 + late, 420, 2, "user_annotation", **shaped(ITEMS)),
        event("torch.distributed.ddp.reducer::copy_bucket_to_grad", 316 + late, 321 + late, **shaped(ITEMS)),
        event("torch.distributed.ddp.reducer::copy_bucket_to_grad", 430, 435, **shaped(ITEMS)),
        event("Optimizer.step#SGD.step", 438, 502, cat="user_annotation"),
        event("aten::add_", 440, 500),
    ]
    return [{**one, "ts": one["ts"] + t} for one in found]


def gpu_step(number: int, late: float = 0.0, base: float = 0.0) -> list[dict]:
    """Launched at once; kernels 20-120 (forward), 120-220 (backward), all-reduce 225-330, update 335-400."""
    t = base + number * STEP_US
    ncclname = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    told = {
        "Collective name": "allreduce",
        "In msg nelems": ITEMS,
        "Out msg nelems": ITEMS,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    found = [event(f"ProfilerStep#{number}", 0, 900, cat="user_annotation")]
    engine = event("autograd::engine::evaluate_function: AddmmBackward0", 6, 10)
    grads = [event("torch::autograd::AccumulateGrad", 10, 12, **shaped(ITEMS))]
    optimizer = event("Optimizer.step#SGD.step", 20, 30, cat="user_annotation")
    found += [engine, *grads, optimizer]
    kernels = [("gemm", 2, 20, 120, 7, {}), ("gemm_grad", 8, 120, 220 + late, 7, {}),
               (ncclname, 14, 225 + late, 330, 20, told), ("sgd", 25, 335, 400, 7, {})]  # fmt: skip
    for place, (name, launch, start, end, stream, more) in enumerate(kernels):
        link = {"correlation": 100 * number + place}
        found.append(event("cudaLaunchKernel", launch, launch + 1, cat="cuda_runtime", **link))
        found.append(event(name, start, end, stream, "kernel", stream=stream, **link, **more))
    return [{**one, "ts": one["ts"] + t} for one in found]


def write(folder: Path, rank: int, events: list[dict], world: int = 2, backend: str = "gloo", packed: bool = False):
    told = {"distributedInfo": {"backend": backend, "rank": rank, "world_size": world}, "traceEvents": events}
    file = folder / (f"any-{9 - rank}.json" + (".gz" if packed else ""))  # its name says nothing of the rank
    text = json.dumps(told).encode()
    file.write_bytes(gzip.compress(text) if packed else text)
    return file


def write_job(folder: Path, late: float = 50.0, shift: float = 0.0, step=cpu_step, backend: str = "gloo") -> Path:
    """Two ranks, three steps; rank 1 is ``late`` in each, and its clock is ahead by ``shift`` microseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, 0, [e for n in range(3, 6) for e in step(n)], backend=backend)
    write(folder, 1, [e for n in range(3, 6) for e in step(n, late, shift)], backend=backend, packed=True)
    return folder
