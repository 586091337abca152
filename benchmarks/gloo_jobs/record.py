"""Run one job with the profiler, rank by rank, and write down what it exchanged in its fifth step."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from benchmarks.gloo_jobs.jobs import JOBS, NETWORKS, STEPS, Job
from benchmarks.gloo_rank import begin

STEPS_RUN = 5
"""From the third on DDP has its buckets for good, with ``static_graph`` too."""
_ACKNOWLEDGED = 120
"""Place of ``tcpi_bytes_acked`` in Linux's ``struct tcp_info``."""
_TYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::Half": ("float16", 2), "c10::BFloat16": ("bfloat16", 2),
    "int": ("int32", 4), "long int": ("int64", 8), "bool": ("bool", 1), "unsigned char": ("uint8", 1),
}  # fmt: skip
"""The profiler's name of a data type -> PyTorch's, and its bytes."""
_SETTLE_S = 0.1
"""After which a peer has acknowledged what it got."""


def record(job: Job, ranks: int, port: int) -> dict[str, Any]:
    """The recording of one job, as it is stored."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (JOBS.index(job), ranks, port, folder)
        torch.multiprocessing.spawn(_rank, arguments, nprocs=ranks)
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    sent = [[step["sent_bytes"] for step in rank["steps"]] for rank in told]
    exchanges = [step["exchanges"] for step in told[0]["steps"]]
    if sorted(exchanges[-1]) != sorted(exchanges[-2]):
        raise RuntimeError(f"{job.name}: its steps are not alike")
    others = {
        "other_ranks": [rank["steps"][-1]["exchanges"] for rank in told[1:]],
        "first_counts": [len(rank["steps"][0]["exchanges"]) for rank in told],
    }
    return {
        "job": job.name,
        "network": job.network,
        "ranks": ranks,
        "torch": torch.__version__,
        "parameters": told[0]["parameters"],
        "buffers": told[0]["buffers"],
        "first_step": exchanges[0],
        "exchanges": exchanges[-1],
        "sent_bytes": [rank[-1] for rank in sent],
        **(others if job.scheme == "pipeline" else {}),
    }


def _rank(rank: int, number: int, ranks: int, port: int, folder: str) -> None:
    begin(rank, ranks, port)
    torch.manual_seed(0)
    job = JOBS[number]
    make, shape = NETWORKS[job.network]
    model = make()
    step = STEPS[job.scheme](job, model, torch.randn(shape))
    told: dict[str, Any] = {
        "parameters": [[name, _dtype(one), list(one.shape)] for name, one in model.named_parameters()],
        "buffers": [[_dtype(one), one.numel() * one.element_size()] for one in model.buffers()],
        "steps": [],
    }
    for _ in range(STEPS_RUN):
        dist.barrier()
        before = _acknowledged_bytes(port)
        with torch.profiler.profile(record_shapes=True) as profiler:
            step()
        sent = _acknowledged_bytes(port) - before
        trace = Path(folder) / f"trace{rank}.json"
        profiler.export_chrome_trace(str(trace))
        told["steps"].append({"exchanges": exchanges_of(trace, job.group(ranks)), "sent_bytes": sent})
        dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def exchanges_of(trace: Path, group: int) -> list[list[Any]]:
    """Phase, kind, data type and bytes of each exchange of a trace, in the order in which they began.

    Bytes are counted as nccl-tests counts them: what a gather over ``group`` ranks ends with.
    """
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    passes = [event for event in events if event["name"] in ("forward", "backward")]
    spans = [event for event in events if str(event["name"]).startswith("gloo:")]
    found = []
    for span in sorted(spans, key=lambda event: event["ts"]):
        phase = next((one["name"] for one in passes if one["ts"] <= span["ts"] < one["ts"] + one["dur"]), "update")
        kind, (type_,) = span["name"].removeprefix("gloo:"), span["args"]["Input type"]
        name, item = _TYPES[type_]
        size = item * math.prod(span["args"]["Input Dims"][0])
        found.append([phase, kind, name, size * (group if kind == "all_gather" else 1)])
    return found


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _acknowledged_bytes(store: int) -> int:
    """Bytes that peers have got from this process over TCP, once each; the store, on its port, is none of them."""
    time.sleep(_SETTLE_S)
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is closed by now, or listens
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if store not in (one.getpeername()[1], one.getsockname()[1]):
                        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                        total += struct.unpack_from("Q", info, _ACKNOWLEDGED)[0]
    return total
