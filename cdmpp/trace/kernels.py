"""Steps of a rank whose operators are kernels of a GPU, with the host's launches as their order: PyTorch with NCCL."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.trace.exchange_events import Event, input_bytes, input_dtype, is_nccl, nccl_exchange
from cdmpp.trace.rank_trace import Exchange, GradientReady, Op, StepTrace

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class _Kernel:
    event: Event
    launched: float
    """Microseconds, when the host launched it; its own start where that is not in the trace."""


def kernel_steps(events: list[Event], marks: list[Event], rank: int, world: int) -> tuple[tuple[StepTrace, ...], int]:
    """Steps by the launches between ``marks``, and how many exchanges run at a time.

    A step lasts from its first kernel to the first of the next step; the last one as long as the median of the others.

    Raises:
        DataError: a step without kernels.
    """
    launches: dict[object, float] = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    kernels = [
        _Kernel(e, launches.get(e.get("args", {}).get("correlation"), float(e["ts"])))
        for e in events
        if e.get("cat") in _ON_DEVICE
    ]
    kernels.sort(key=lambda one: one.launched)
    phases = _phases(events)
    bounds = [mark["ts"] for mark in marks] + [marks[-1]["ts"] + marks[-1]["dur"]]
    parts = [[k for k in kernels if low <= k.launched < high] for low, high in zip(bounds, bounds[1:], strict=False)]
    for mark, part in zip(marks, parts, strict=True):
        if not any(not is_nccl(kernel.event) for kernel in part):
            raise DataError(f"rank {rank}: {mark['name']} launched no kernel; profile the CPU and the CUDA activity")
    begins = [min(k.event["ts"] for k in part) for part in parts]
    lengths = sorted(b - a for a, b in zip(begins, begins[1:], strict=False))
    last = max(k.event["ts"] + k.event["dur"] for k in parts[-1])
    ends = [*begins[1:], max(last, begins[-1] + (lengths[len(lengths) // 2] if lengths else 0.0))]
    grads = sorted((e for e in events if e["name"] == "torch::autograd::AccumulateGrad"), key=lambda e: e["ts"])
    steps = []
    for mark, part, begin, end in zip(marks, parts, begins, ends, strict=True):
        mine = [g for g in grads if mark["ts"] <= g["ts"] < mark["ts"] + mark["dur"]]
        steps.append(_step(mark, part, begin, end, mine, phases))
    streams = Counter(k.event.get("args", {}).get("stream") for k in kernels if is_nccl(k.event))
    return tuple(steps), max(len(streams), 1)


def _phases(events: list[Event]) -> list[tuple[float, float, str]]:
    """Stretches of the host's time that are backward pass or update, by start."""
    marks = {"autograd::engine": "backward", "Optimizer.step": "update"}
    return sorted(
        (e["ts"], e["ts"] + e["dur"], phase)
        for e in events
        for start, phase in marks.items()
        if str(e["name"]).startswith(start) and e.get("cat") in ("cpu_op", "user_annotation")
    )


def _step(
    mark: Event, part: list[_Kernel], begin: float, end: float, grads: list[Event],
    phases: list[tuple[float, float, str]],
) -> StepTrace:  # fmt: skip
    compute = sorted((k for k in part if not is_nccl(k.event)), key=lambda k: k.event["ts"])
    phase_starts = [start for start, _, _ in phases]

    def phase_of(moment: float) -> str:
        place = bisect_right(phase_starts, moment) - 1
        return phases[place][2] if place >= 0 and moment <= phases[place][1] else ""

    named = [phase_of(kernel.launched) for kernel in compute]
    backward = [place for place, phase in enumerate(named) if phase == "backward"]
    ops, clock = [], float("-inf")
    for place, (kernel, phase) in enumerate(zip(compute, named, strict=True)):
        start = max(kernel.event["ts"], clock)  # of kernels that overlap, the later counts from the end of the earlier
        clock = max(start, kernel.event["ts"] + kernel.event["dur"])
        phase = phase or ("update" if backward and place > backward[-1] else "forward")
        ops.append(Op(str(kernel.event["name"]), phase, 1e-6 * start, 1e-6 * clock, events=0))
    order = sorted(range(len(compute)), key=lambda place: compute[place].launched)
    times = [compute[place].launched for place in order]

    def before(moment: float) -> int:
        """The last op launched by then."""
        at = bisect_right(times, moment)
        return order[at - 1] if at else -1

    exchanges = []
    for kernel in part:
        if is_nccl(kernel.event):
            kind, size, group = nccl_exchange(kernel.event)
            start, stop = kernel.event["ts"], kernel.event["ts"] + kernel.event["dur"]
            exchanges.append(Exchange(kind, size, 1e-6 * start, 1e-6 * stop, before(kernel.launched), group))
    gradients = [
        GradientReady(input_bytes(grad), before(grad["ts"] + grad["dur"]), input_dtype(grad))
        for grad in grads
        if before(grad["ts"] + grad["dur"]) >= 0
    ]
    number = int(str(mark["name"]).partition("#")[2])
    return StepTrace(number, 1e-6 * begin, 1e-6 * end, tuple(ops), tuple(exchanges), tuple(gradients))
