"""Times one operator of PyTorch's libraries in this process: run in a worker, because it may crash, hang or be killed.

CPU and GPU differ only in their clock: what is called, warmed up and repeated is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from cdmpp.errors import CdmppError
from cdmpp.measure.protocol import Rule
from cdmpp.measure.torch_call import torch_call
from cdmpp.measure.torch_protocol import torch_rule
from cdmpp.operators.operator import EagerOperator
from cdmpp.platform.workers import Reply, Request

Seconds = Callable[[Callable[[], Any], int], float]
"""``(run, calls)`` -> seconds that so many calls take together."""
_SETTLING_BYTES = 31 << 20
OUT_OF_MEMORY = "out of memory"
"""Cause of a failure."""


def load_torch(request: Request) -> Reply:
    """Set up this process: ``threads`` of a CPU, full precision; ``CdmppError`` where ``device`` is not here."""
    torch.set_num_threads(request["threads"])
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if request["device"] != "cpu" and not torch.cuda.is_available():
        raise CdmppError(f"torch {torch.__version__} sees no GPU")
    # glibc keeps freed blocks only up to the size of the largest that it has seen freed, at most 32 MiB. It shall not
    # depend on the operators before whether an output is fresh memory, which costs a fault a page.
    torch.empty(_SETTLING_BYTES, dtype=torch.uint8).fill_(1)
    torch.empty(1, device=request["device"])  # loads the driver now, within the time limit of starting
    return {}


def time_operator(request: Request) -> Reply:
    """Take one visit to ``operator`` (JSON) on ``device``, ``cpu`` or ``cuda``.

    Returns ``{"samples": seconds a call, one per repeat}``, ``{"cause": "too slow", "run_s": ...}``, or the cause
    ``OUT_OF_MEMORY``. With ``clock`` (a library of ``clock.build_clock``) it names the core's ``clock_mhz`` too.
    """
    operator, place = EagerOperator.from_json(request["operator"]), request["device"]
    try:
        with torch.inference_mode():
            call = torch_call(operator, place)
            reply = time_call(call.run, wall_seconds if place == "cpu" else event_seconds, torch_rule(place))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {"cause": OUT_OF_MEMORY, "message": str(error)[:200], "restart": True}
    if (clock := request.get("clock")) and "samples" in reply:  # right after the runs: the clock that they had
        from cdmpp.measure.clock import running_mhz

        reply["clock_mhz"] = running_mhz(clock)
    return reply


def time_call(run: Callable[[], Any], seconds: Seconds, rule: Rule) -> Reply:
    """Repeat ``run`` by ``rule``; replies as ``time_operator``."""
    run()  # chooses a kernel, loads or even compiles it
    run_s = max(seconds(run, 1), 1e-9)
    if not (repeats := rule.repeats_for(run_s)):
        return {"cause": "too slow", "run_s": run_s}
    calls = max(1, math.ceil(1e-3 * rule.repeat_ms / run_s))
    if calls > 1:  # the second call of a short one still takes longer than later ones
        calls = math.ceil(1e-3 * rule.repeat_ms / min(run_s, seconds(run, calls) / calls))
    return {"samples": [seconds(run, calls) / calls for _ in range(repeats)]}


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if PyTorch, or Python, found too little memory."""
    told = str(error).lower()
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(words in told for words in ("out of memory", "can't allocate memory", "not enough memory"))


def wall_seconds(run: Callable[[], Any], calls: int) -> float:
    """Time on a CPU by the wall clock, with the dispatch by Python and PyTorch, as in a network."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - begin


def event_seconds(run: Callable[[], Any], calls: int) -> float:
    """Time on a GPU between two events on its stream, which is idle before and is waited for behind.

    The first event passes at once, so a call takes what its host needs to dispatch it and what the device needs to
    run it, as in the measurements of NeuSight: one eager call between two events, a synchronise behind it, caches left
    warm. Their label is the mean of the five fastest of 25 calls, ours the fastest of all.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * begin.elapsed_time(end)
