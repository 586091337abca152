"""Fixed kernels timed at both ends of every measuring window: they tell a slow program from a slow moment."""

from __future__ import annotations

import contextlib
import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.protocol import Timed
from cdmpp.platform.workers import Worker

TOLERANCE = {"compute": 0.05, "cache": 0.05, "memory": 0.25}
"""Share by which one may lie above its best-known value. Neighbours share the memory, so it gets more."""


def _workload(buffers: str, shape: tuple[int, ...], loops: Sequence[str], block: str) -> tuple[str, list[Any]]:
    """TVMScript of ``block`` inside ``loops`` over ``buffers`` of one shape, and its arguments."""
    parameters = ", ".join(f'{name}: T.Buffer({shape}, "float32")' for name in buffers)
    text = f"@I.ir_module\nclass Module:\n    @T.prim_func(s_tir=True)\n    def main({parameters}):\n"
    text += "\n".join(textwrap.indent(part, "    " * (2 + depth)) for depth, part in enumerate([*loops, block]))
    return text, [[list(shape), "float32"]] * len(buffers)


def _bound(name: str, extent: int, thread: str) -> str:
    return f'for {name} in T.thread_binding({extent}, thread="{thread}Idx.x"):'


def _elementwise(elements: int, gpu: bool = False) -> tuple[str, list[Any]]:
    loops, index = [f"for i in range({elements}):"], "i"
    if gpu:
        loops, index = [_bound("b", elements // 256, "block"), _bound("t", 256, "thread")], "b * 256 + t"
    block = f"""with T.sblock("B"):
    v = T.axis.spatial({elements}, {index})
    B[v] = A[v] * T.float32(0.5) + T.float32(1.0)"""
    return _workload("AB", (elements,), loops, block)


def _matmul(n: int, gpu: bool = False) -> tuple[str, list[Any]]:
    loops = [f"for i, k, j in T.grid({n}, {n}, {n}):"]
    if gpu:
        loops = [_bound("i", n, "block"), _bound("j", n, "thread"), f"for k in range({n}):"]
    block = """with T.sblock("C"):
    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
    with T.init():
        C[vi, vj] = T.float32(0.0)
    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]"""
    return _workload("ABC", (n, n), loops, block)


WORKLOADS: Mapping[str, tuple[str, list[Any]]] = {
    "compute": _matmul(64),
    "cache": _elementwise(64 * 1024),
    "memory": _elementwise(8 * 1024 * 1024),
}
"""Name -> TVMScript, arguments of the reference kernels of a CPU."""
GPU_WORKLOADS: Mapping[str, tuple[str, list[Any]]] = {
    "compute": _matmul(256, gpu=True),
    "cache": _elementwise(1024 * 1024, gpu=True),
    "memory": _elementwise(64 * 1024 * 1024, gpu=True),
}

Timing = Callable[[Timed], dict[str, Any]]
"""A built program -> the request for one visit."""
PREFIX = "reference_"
"""Start of the id of a reference kernel; its name in ``TOLERANCE`` follows."""


def build_reference_kernels(builder: Worker, target: Mapping[str, Any], folder: Path) -> list[Timed]:
    """Compile the kernels for ``target``'s kind of device into ``folder``; ``CdmppError`` where one does not build."""
    kernels = []
    for name, (workload, arguments) in (WORKLOADS if target["kind"] == "llvm" else GPU_WORKLOADS).items():
        kernel = Timed(PREFIX + name, arguments, folder / f"{PREFIX}{name}.so")
        unscheduled = kernel.build_request(workload, "[[],[]]", target)
        reply = builder.request(unscheduled, 2 * protocol.BUILD_LIMIT_S)
        if "cause" in reply:
            raise CdmppError(f"the reference kernel {name} does not build: {reply}")
        kernels.append(kernel)
    return kernels


class ReferenceKernels:
    """It times these kernels, and remembers the best-known values in ``log`` (JSON lines)."""

    def __init__(self, worker: Worker, log: Path, timing: Timing, programs: Sequence[Timed]) -> None:
        self.worker = worker
        self.log = log
        self.history: list[dict[str, float]] = []
        self._requests = {p.record_id.removeprefix(PREFIX): timing(p) for p in programs}
        for path in (log.with_name(log.name.replace("reference_kernels", "sentinels")), log):  # the old name first
            for line in path.read_text().splitlines() if path.exists() else ():
                with contextlib.suppress(ValueError, KeyError):  # a line cut short by a kill
                    self.history.append(json.loads(line)["run_s"])

    def best(self) -> dict[str, float]:
        """Return seconds a run in a quiet moment: a low quantile, so that one lucky value does not rule."""
        recent = self.history[-200:]
        values = {name: sorted(entry[name] for entry in recent if name in entry) for name in self._requests}
        return {name: v[int(0.2 * (len(v) - 1))] for name, v in values.items() if v}

    def take(self) -> dict[str, float]:
        """Time every reference kernel once, and log it."""
        run_s: dict[str, float] = {}
        for name, request in self._requests.items():
            reply = self.worker.request(request, protocol.VISIT_LIMIT_S)
            if "samples" in reply:
                run_s[name] = min(reply["samples"])
        self.history.append(run_s)
        with self.log.open("a") as file:
            file.write(json.dumps({"time": round(time.time(), 1), "run_s": run_s}) + "\n")
        return run_s

    def quiet(self, run_s: Mapping[str, float]) -> bool:
        """Return True where no reference kernel is slower than its best-known value allows."""
        best = self.best()
        return all(run_s.get(name, float("inf")) <= best[name] * (1 + TOLERANCE[name]) for name in best)

    def wait_until_quiet(self) -> bool:
        """Time the kernels until they are quiet, for about ten seconds at most; returns whether they became so."""
        for attempt in range(6):
            if attempt:
                time.sleep(1.5)
            if self.quiet(self.take()):
                return True
        return False
