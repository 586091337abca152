"""The child process behind ``isolation.Worker``: answers one JSON request after another over a pipe.

Started as ``python -m cdmpp.measure.worker FD CORES``; ends when the pipe closes. Everything that may crash or hang
(importing a network, sampling, compiling, running a kernel) happens here and not in the collector.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Request = dict[str, Any]


def import_tasks(request: Request) -> Request:
    """``network``, ``spec`` -> ``tasks``: their fields."""
    import dataclasses

    from cdmpp.programs.networks import import_network

    return {"tasks": [dataclasses.asdict(task) for task in import_network(request["network"], request["spec"])]}


def sample(request: Request) -> Request:
    """``task``, ``target``, ``n``, ``seed`` -> ``schedules``: trace JSON texts; ``arguments`` of the task."""
    from cdmpp.measure.build import arguments_of
    from cdmpp.programs.sampling import sample_programs
    from cdmpp.programs.task import Task

    task = Task(**request["task"])
    programs = sample_programs(task, request["target"], request["n"], request["seed"])
    return {"schedules": [program.trace for program in programs], "arguments": arguments_of(task.workload)}


def build_program(request: Request) -> Request:
    """``workload``, ``schedule``, ``target``, ``path`` -> nothing; the library lies at ``path``."""
    from cdmpp.measure.build import build
    from cdmpp.programs.replay import replay

    build(replay(request["workload"], request["schedule"], request["target"]), Path(request["path"]))
    return {}


def time_program(request: Request) -> Request:
    """``path``, ``arguments`` -> ``samples`` or ``cause``."""
    from cdmpp.measure.timing import time_library

    return time_library(request["path"], request["arguments"])


def time_over_rpc(request: Request) -> Request:
    """``path``, ``arguments``, ``tracker``, ``key`` -> ``samples`` or ``cause``; tried again where a session breaks."""
    from cdmpp.measure.remote import ATTEMPTS, time_remote

    for attempt in range(ATTEMPTS):
        try:
            return time_remote(request["tracker"], request["key"], request["path"], request["arguments"])
        except Exception as error:  # noqa: BLE001 - TVM raises many kinds, and all mean that the session broke
            last = f"{type(error).__name__}: {str(error)[-300:]}"
            time.sleep(attempt)
    return {"cause": "remote error", "message": last}


def build_for_kit(request: Request) -> Request:
    """``workload``, ``schedule``, ``target``, ``path``, ``symbol`` -> nothing; library and CUDA source lie there."""
    from cdmpp.measure.kit.compile import compile_program
    from cdmpp.programs.replay import replay

    program = replay(request["workload"], request["schedule"], request["target"])
    compile_program(program, request["symbol"], Path(request["path"]))
    return {}


def expected_output(request: Request) -> Request:
    """``workload``, ``arguments``, ``path`` -> nothing; what the task computes lies at ``path`` (npy)."""
    from cdmpp.measure.kit.compile import write_expected

    write_expected(request["workload"], request["arguments"], Path(request["path"]))
    return {}


def ready_in_kit(request: Request) -> Request:
    """``libraries``, ``cubins`` -> nothing; TVM's runtime is loaded."""
    from cdmpp.measure.kit import runtime

    runtime.load(request["libraries"], request["cubins"])
    return {}


def time_in_kit(request: Request) -> Request:
    """``path``, ``symbol``, ``arguments``, ``device``, ``flush_bytes`` -> ``samples`` or ``cause``."""
    from cdmpp.measure.kit import runtime

    return runtime.guarded(runtime.time_library, request)


def check_in_kit(request: Request) -> Request:
    """As ``time_in_kit``, with ``expected`` (npy) -> ``error``: the largest deviation over the largest value."""
    from cdmpp.measure.kit import runtime

    return runtime.guarded(runtime.check_library, request)


def ready(_: Request) -> Request:
    """Import TVM now rather than within the time limit of the first request."""
    import tvm

    return {"tvm": tvm.__version__}


OPERATIONS: dict[str, Callable[[Request], Request]] = {
    "import": import_tasks,
    "sample": sample,
    "build": build_program,
    "time": time_program,
    "time_rpc": time_over_rpc,
    "ready": ready,
    "build_kit": build_for_kit,
    "expect": expected_output,
    "ready_kit": ready_in_kit,
    "time_kit": time_in_kit,
    "check_kit": check_in_kit,
}


def main(descriptor: int, cores: str) -> None:
    """``cores``: comma-separated processors to run on; empty for any."""
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    connection = Connection(descriptor)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            reply = OPERATIONS[request["op"]](request)
        except Exception as error:  # noqa: BLE001 - whatever went wrong costs this request only
            reply = {"cause": request["op"] + " error", "message": f"{type(error).__name__}: {str(error)[-500:]}"}
        connection.send_bytes(json.dumps(reply).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
