"""Networks -> tasks -> schedules -> shared libraries: what a worker does with TVM before anything is timed."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.platform.workers import Reply, Request
from cdmpp.programs.task import Task


def load_compiler(_: Request) -> Reply:
    """Import TVM now rather than within the time limit of the first request."""
    import tvm

    return {"tvm": tvm.__version__}


def import_tasks(request: Request) -> Reply:
    """Import the ``network`` that ``spec`` describes; ``tasks`` holds the fields of its tasks."""
    from cdmpp.programs.networks import import_network

    return {"tasks": [asdict(task) for task in import_network(request["network"], request["spec"])]}


def sample(request: Request) -> Reply:
    """Draw ``n`` schedules of ``task`` for ``target`` from ``seed``; ``schedules`` holds their traces as JSON texts."""
    from cdmpp.programs.sampling import sample_programs

    programs = sample_programs(Task(**request["task"]), request["target"], request["n"], request["seed"])
    return {"schedules": [program.trace for program in programs]}


@lru_cache(maxsize=64)
def arguments_of(workload: str) -> list[list[Any]]:
    """Return ``[[shape, dtype], ...]`` of a task's parameters, outputs included."""
    from cdmpp.programs.replay import parse_workload

    main = parse_workload(workload)["main"]
    return [[[int(extent) for extent in param.shape], str(param.dtype)] for param in main.params]


def build(request: Request) -> Reply:
    """Build ``workload`` with ``schedule`` for ``target`` as library ``path``; next to it a GPU's code."""
    import tvm

    from cdmpp.programs.replay import replay

    symbol, path = request["symbol"], Path(request["path"])
    program = replay(request["workload"], request["schedule"], request["target"])
    entry = program.module["main"].with_attr("global_symbol", symbol)
    library = tvm.compile(tvm.IRModule({symbol: entry}), target=program.target)
    library.export_library(str(path))
    sources = [module.inspect_source() for module in library.mod.imports if module.kind == "cuda"]
    if len(sources) > 1:
        raise CdmppError(f"{symbol} has {len(sources)} CUDA modules, one is expected")
    if sources:
        from tvm.support.nvcc import compile_cuda

        path.with_suffix(".cu").write_text(sources[0])
        with program.target:
            code = compile_cuda(sources[0], "cubin", request["target"]["arch"], compiler="nvcc")
        path.with_suffix(".cubin").write_bytes(code)
    return {}


def write_expected(request: Request) -> Reply:
    """Run the unscheduled task here and write its last argument (npy) to ``path``; the reply is empty."""
    import tvm

    from cdmpp.measure.timing import tensors_for
    from cdmpp.programs.replay import parse_workload

    tensors = tensors_for(arguments_of(request["workload"]), "cpu")
    tvm.compile(parse_workload(request["workload"]), target=tvm.target.Target("llvm"))["main"](*tensors)
    np.save(request["path"], tensors[-1].numpy(), allow_pickle=False)
    return {}
