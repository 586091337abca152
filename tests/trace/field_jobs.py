"""Small jobs as the field records them; every function writes one folder of traces, and says what is right of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Trace:
    """The trace of one rank in the making. Times are microseconds."""

    def __init__(self, rank=0, world=1, backend="nccl", runtime="cuda_runtime", kernel="kernel"):
        self.events: list[dict[str, Any]] = []
        self.count, self.runtime, self.kernel, self.rank = 100, runtime, kernel, rank
        self.info = {"backend": backend, "rank": rank, "world_size": world}

    def span(self, cat, name, ts, dur, tid=1, pid=1, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def mark(self, number, ts, dur):
        self.span("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def device(self, name, launch, ts, dur, stream=7, cat=None, **args):
        """An event of the device; ``launch`` None: its launch lies before the profiler."""
        self.count += 1
        if launch is not None:
            self.span(self.runtime, "launch", launch, 2, correlation=self.count)
        self.span(
            cat or self.kernel, name, ts, dur, tid=stream, pid=0, stream=stream, device=self.rank,
            correlation=self.count, **args,
        )  # fmt: skip

    def save(self, folder: Path, told=True) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        whole: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        if told:
            whole["distributedInfo"] = self.info
        (folder / f"rank{self.rank}.json").write_text(json.dumps(whole))
        return folder


def steps_of(trace: Trace, count=3, length=5000) -> Trace:
    """Steps of four kernels of 1 ms each, which begin 300 us after the mark."""
    for number in range(count):
        begin = length * number
        trace.mark(number, begin, length)
        for i in range(4):
            trace.device(f"mix_{i}", begin + 100 + 20 * i, begin + 300 + 1000 * i, 1000)
    return trace


def one_step_host(folder):
    """A host step of 10 ms, its 4 kernels of 100 us in its last 2 ms: 10 ms a step."""
    trace = Trace()
    trace.mark(3, 0, 10000)
    trace.span("cpu_op", "aten::blend", 0, 7900)
    for i in range(4):
        trace.device(f"mix_{i}", 8000 + 500 * i, 8010 + 500 * i, 100)
    return trace.save(folder)


def prefetch_stream(folder):
    """10 kernels of 1 ms without a pause; the host is 5 ms ahead and copies the next batch first: 10 ms, no gaps."""
    trace = Trace()
    for number in range(4):
        h = 10000 * number
        trace.mark(number, h, 10000)
        trace.device("Memcpy HtoD (Pinned -> Device)", h + 5, h + 10, 1000, stream=22, cat="gpu_memcpy")
        for i in range(10):
            trace.device(f"mix_{i}", h + 100 + 20 * i, h + 5000 + 1000 * i, 1000)
    return trace.save(folder)


def copy_beside(folder):
    """A copy of 8 ms beside 10 kernels of 1 ms: 10 ms a step, 8 ms with kernels twice as fast."""
    trace = Trace()
    for number in range(4):
        h = 10000 * number
        trace.mark(number, h, 10000)
        trace.device("Memcpy HtoD (Pinned -> Device)", h + 5, h + 100, 8000, stream=22, cat="gpu_memcpy")
        for i in range(10):
            trace.device(f"mix_{i}", h + 10 + 5 * i, h + 101 + 999 * i, 999)
    return trace.save(folder)


def two_streams(folder):
    """10 kernels `alpha` of 1 ms beside 5 kernels `beta` of 2 ms: 10 ms a step, also with beta twice as fast."""
    trace = Trace()
    for number in range(4):
        h = 10000 * number
        trace.mark(number, h, 10000)
        for i in range(10):
            trace.device("alpha", h + 10 + 20 * i, h + 100 + 1000 * i, 1000)
        for i in range(5):
            trace.device("beta", h + 15 + 40 * i, h + 600 + 2000 * i, 1900, stream=9)
    return trace.save(folder)


def kernels_lost(folder, count=3):
    """An XPU that is 6 ms behind its host: 8 kernels and 8 ms a step."""
    trace = Trace(runtime="xpu_runtime", backend="xccl")
    for number in range(count):
        h = 8000 * number
        trace.mark(number, h, 8000)
        for i in range(8):
            trace.device(f"mix_{i}", h + 100 + 20 * i, h + 6000 + 1000 * i, 1000)
    return trace.save(folder)


def kernels_lost_one_step(folder):
    """The same of one step."""
    return kernels_lost(folder, 1)


def leftover(folder):
    """3 kernels that were launched before the profiler belong to no step; 5 do, in 5 ms."""
    trace = Trace()
    for i in range(3):
        trace.device(f"old_{i}", None, 200 + 1000 * i, 1000)
    trace.mark(0, 0, 5000)
    for i in range(5):
        trace.device(f"mix_{i}", 100 + 20 * i, 3200 + 1000 * i, 1000)
    return trace.save(folder)


def other_accelerator(folder):
    """Device events of a category of their own: 9 ms of the device in steps of 10 ms."""
    trace = Trace(runtime="mtia_runtime", kernel="mtia_ccp_events", backend="hccl")
    for number in range(3):
        h = 10000 * number
        trace.mark(number, h, 10000)
        for i in range(9):
            trace.span("cpu_op", f"aten::blend_{i}", h + 100 + 50 * i, 40)
            trace.device(f"tile_{i}", h + 110 + 50 * i, h + 600 + 1000 * i, 1000)
    return trace.save(folder)


def _collectives(folder, is_new, kernels):
    for rank in range(2):
        trace = Trace(rank, 2)
        for number in range(3):
            h = 10000 * number
            trace.mark(number, h, 10000)
            for i in range(4):
                trace.device(f"mix_{i}", h + 100 + 20 * i, h + 300 + 1000 * i, 1000)
            for k, (kind, size, at) in enumerate((("all_to_all", 1000000, 1200), ("all_reduce", 2000000, 4500))):
                launch, link = h + 130 + 40 * k, {"External id": 900 + k}
                trace.count += 1
                if is_new:
                    told = {
                        "Collective name": kind.replace("_", ""), "dtype": "Float", "In msg nelems": size,
                        "Out msg nelems": size, "Group size": 2, "Process Group Name": "0",
                        "Process Group Ranks": "[0, 1]",
                    }  # fmt: skip
                    trace.span("cpu_op", "record_param_comms", launch - 3, 8, **link, **told)
                else:
                    told = {"Input Dims": [[size]], "Input type": ["float"]}
                    trace.span("user_annotation", f"nccl:{kind}", launch - 3, 8, **link, **told)
                ids = {"correlation": trace.count, **link}
                trace.span("cuda_runtime", "cudaLaunchKernel", launch, 2, **ids)
                trace.span("kernel", kernels[k], h + at, 2000, tid=20, pid=0, stream=20, device=rank, **ids)
            trace.device("mix_last", h + 200, h + 6600, 1000)
        trace.save(folder)
    return folder


def nccl_sizes_on_host(folder):
    """Kernels that say SendRecv and AllReduce; the host says all_to_all of 4 MB and all_reduce of 8 MB."""
    names = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(args)", "ncclKernel_AllReduce_RING_LL_Sum_float(args)"
    return _collectives(folder, False, names)


def nccl_generic(folder):
    """Kernels that say nothing."""
    return _collectives(folder, True, ("ncclDevKernel_Generic(args)", "ncclDevKernel_Generic(args)"))


def steps_differ(folder):
    """Steps of 10, 20, 20, 20, 20 ms, each with one small copy more than the one before: 20 ms."""
    trace, h = Trace(), 0
    for number in range(5):
        length = 20000 if number else 10000
        trace.mark(number, h, length)
        for i in range(number):
            trace.device("Memset (Device)", h + 50 + i, h + 60 + 10 * i, 1, cat="gpu_memset")
        each = length // 4 - 100
        for i in range(4):
            trace.device(f"mix_{i}", h + 100 + 20 * i, h + 300 + each * i, each)
        h += length
    return trace.save(folder)


def empty_mark(folder):
    """The profiler stopped just after the last mark was opened: the whole steps answer."""
    trace = steps_of(Trace())
    trace.mark(3, 15000, 49)
    return trace.save(folder)


def one_gpu(folder):
    """A job that never started a process group: one rank."""
    return steps_of(Trace()).save(folder, told=False)


def _with(folder, change: Callable[[dict[str, Any]], Any]):
    trace = steps_of(Trace())
    for event in trace.events:
        if event["name"] == "mix_2":
            change(event)
    return trace.save(folder)


def null_args(folder):
    """Kernels whose args are null: read, 4 kernels a step."""
    return _with(folder, lambda event: event.update(args=None))


def text_numbers(folder):
    """Lengths written as text: read."""
    return _with(folder, lambda event: event.update(dur=str(event["dur"])))


def negative(folder):
    """A kernel of -1000 us in every step: refused by name."""
    return _with(folder, lambda event: event.update(dur=-1000))


def phases(folder, runtime="cuda_runtime"):
    """4 kernels of the forward and 4 of the backward pass a step, on a device that is 5 ms behind."""
    trace = Trace(runtime=runtime)
    for number in range(3):
        h = 10000 * number
        trace.mark(number, h, 10000)
        trace.span("cpu_op", "autograd::engine::evaluate_function: BlendBackward", h + 400, 300, tid=2)
        for i in range(4):
            trace.device(f"fwd_{i}", h + 100 + 20 * i, h + 1000 + 1000 * i, 1000)
        for i in range(4):
            trace.device(f"bwd_{i}", h + 410 + 20 * i, h + 5000 + 1000 * i, 1000)
    return trace.save(folder)


def gpu_lost_all(folder):
    """Launches and no kernel at all: refused, with the reason."""
    trace = Trace()
    for number in range(3):
        h = 5000 * number
        trace.mark(number, h, 5000)
        for i in range(4):
            trace.span("cpu_op", f"aten::blend_{i}", h + 100 + 60 * i, 50)
            link = 9000 + 10 * number + i
            trace.span("cuda_runtime", "cudaLaunchKernel", h + 110 + 60 * i, 20, correlation=link)
    return trace.save(folder)
