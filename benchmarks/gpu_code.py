"""What reading GPU machine code takes a program, step by step, on one core. Needs TVM and NVIDIA's tools, no GPU."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import finish
from benchmarks.workloads import TARGETS, sampled

EACH, TOGETHER = 24, 12
NETWORKS, OF_NETWORKS = Path(__file__).parents[1] / "datasets" / "h100", 96
ARCH, MULTIPROCESSORS = 80, 108


def measure() -> list[dict[str, Any]]:
    """Seconds of each step, mean over the programs of an operator."""
    groups = {name: programs for (name, kind), programs in sampled(EACH).items() if kind == "cuda"}
    groups["of 84 networks"] = _of_networks()
    return [{"task": name, "programs": len(programs), **_row(programs)} for name, programs in groups.items()]


def _of_networks() -> list[Any]:
    """Recorded programs, drawn with seed 0, for the target of the other rows."""
    from cdmpp import devices
    from cdmpp.data.records import read_records, read_tasks
    from cdmpp.programs.replay import parse_target, parse_workload, replay_on
    from cdmpp.programs.task import Program

    tasks, target = read_tasks(NETWORKS), parse_target(devices.get(TARGETS["cuda"]).target)
    drawn = random.Random(0).sample(list(read_records(NETWORKS)), OF_NETWORKS)
    workloads = [(parse_workload(tasks[record.task_id].workload), record.schedule) for record in drawn]
    return [Program(replay_on(workload, schedule).mod, target) for workload, schedule in workloads]


def _row(programs: list[Any]) -> dict[str, float]:
    from cdmpp.ast.extract import extract
    from cdmpp.ast.kernel_features import KERNEL_NAMES
    from cdmpp.devices.gpu_core import gpu_core_of
    from cdmpp.errors import DataError
    from cdmpp.machine_code.gpu.cuda import assembled
    from cdmpp.machine_code.gpu.cuda_source import cuda_source
    from cdmpp.machine_code.gpu.gpu_code_vector import gpu_code_vector
    from cdmpp.machine_code.gpu.kernel_code import KernelWork
    from cdmpp.machine_code.gpu.native import native_library

    native_library()
    core, spent = gpu_core_of(ARCH), dict.fromkeys(("ast_s", "source_s", "compile_s", "execute_s"), 0.0)

    def timed(name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        found = run(*arguments)
        spent[name] += time.perf_counter() - start
        return found

    lines, refused = 0, 0
    for batch in _batches(programs):
        asts = [timed("ast_s", extract, program.module, program.target) for program in batch]
        sources = [timed("source_s", cuda_source, program) for program in batch]
        texts = {str(number): source.text for number, source in enumerate(sources)}
        machine = timed("compile_s", assembled, texts, ARCH)
        for ast, source, found in zip(asts, sources, machine.values(), strict=True):
            rows = np.exp2(ast.kernel_features.astype(float)) - 1
            places = [KERNEL_NAMES.index(name) for name in ("block_read_bytes", "fma_per_thread")]
            works = [KernelWork(*(float(row[place]) for place in places)) for row in rows]
            if isinstance(found, DataError):
                refused += 1
                continue
            lines += sum(len(kernel.lines) for kernel in found.kernels.values())
            try:
                timed("execute_s", gpu_code_vector, source.launches, found, works, core, MULTIPROCESSORS)
            except DataError:
                refused += 1
    means = {name: seconds / len(programs) for name, seconds in spent.items()}
    return {**means, "instructions": lines / len(programs), "refused": refused}


def _batches(programs: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(programs), TOGETHER):
        yield programs[start : start + TOGETHER]


if __name__ == "__main__":
    finish(measure())
