"""Child process of ``derive``: makes one program a request and answers with what TVM computes of it, as arrays."""

from __future__ import annotations

import base64
import gc
import io
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError, DataError, MissingToolError
from cdmpp.platform.allocation import limit_memory
from cdmpp.platform.workers import Operation, Reply, Request, serve

_FOR_NOW = (
    OSError,
    MemoryError,
    ImportError,
    MissingToolError,
)  # what the machine lacks today is no property of a program

Arrays = Mapping[str, np.ndarray]


def packed(arrays: Arrays) -> str:
    """Write ``arrays`` as text, exact; ``unpacked`` reads it."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return base64.b64encode(stream.getvalue()).decode()


def unpacked(text: str) -> dict[str, np.ndarray]:
    """Read the arrays that ``packed`` wrote."""
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as stored:
        return dict(stored)


def _program(request: Request) -> Any:
    """``Program`` of a ``derive.Source``: replayed where it has a schedule."""
    from cdmpp.programs.replay import parse_target, parse_workload, replay_on
    from cdmpp.programs.task import Program

    module = (_module_of_graph if request["graph"] else parse_workload)(request["workload"])
    scheduled = replay_on(module, request["schedule"]).mod if request["schedule"] else module
    return Program(scheduled, parse_target(request["target"]))


@lru_cache(maxsize=64)
def _module_of_graph(text: str) -> Any:
    """A JSON graph that the parent wrote, not TVMScript."""
    import tvm

    return tvm.ir.load_json(text)


def _ast(request: Request) -> Arrays:
    from cdmpp.ast.extract import extract
    from cdmpp.ast.table import AstTable

    program = _program(request)
    table = AstTable.from_asts([extract(program.module, program.target)])
    return {name: array for name, array in vars(table).items() if array is not None}


@lru_cache(maxsize=8)
def _extractor(target: Any) -> tuple[Any, Any]:
    import tvm_ffi
    from tvm.s_tir import meta_schedule as ms

    # The Python constructor of TuneContext imports every tensor intrinsic, which takes 10 s and is not needed here.
    make_context = tvm_ffi.get_global_func("s_tir.meta_schedule.TuneContext")
    context = make_context(None, target, None, None, "features", 1, -1, None)
    return ms.feature_extractor.PerStoreFeature(), context


def extract_rows(schedule: Any, target: Any) -> np.ndarray:
    """Extract the rows of a TVM ``Schedule``, (stores, 164) float32, compressed by log2(1 + x); takes 1-15 ms."""
    from tvm.s_tir import meta_schedule as ms

    extractor, context = _extractor(target)
    (rows,) = extractor.extract_from(context, [ms.MeasureCandidate(schedule, [])])
    return rows.numpy().astype(np.float32)


def _per_store(request: Request) -> Arrays:
    from cdmpp.programs.replay import parse_target, replay_schedule

    schedule = replay_schedule(request["workload"], request["schedule"])
    return {"rows": extract_rows(schedule, parse_target(request["target"]))}


def _code(request: Request) -> Arrays:
    from tvm.runtime import enabled

    from cdmpp.devices.cores import core_names, get_core
    from cdmpp.machine_code.cpu.code_vector import code_vector
    from cdmpp.machine_code.cpu.compile import compiled

    if not enabled("llvm"):
        raise ImportError("this TVM was built without LLVM")
    if not request["core"]:
        raise DataError(
            "the device's core is not described, so nothing tells how fast it runs machine code: add `core:` to its "
            f"file, one of {', '.join(core_names())}, or describe another in conf/core"
        )
    return {"code": code_vector(*compiled(_program(request)), get_core(request["core"]))}


def gpu_codes(request: Request) -> Reply:
    """Compile the ``programs`` together, and make a reply of ``_answer`` for each."""
    from cdmpp.data.gpu_codes import gpu_codes_of

    replies: list[Reply] = []
    for found in gpu_codes_of(request["programs"], _program):
        replies.append(_refused(found) if isinstance(found, Exception) else {"arrays": packed({"code": found})})
    return {"programs": replies}


def _refused(error: Exception) -> Reply:
    return {"reason": _reason(error), "lasting": not isinstance(error, _FOR_NOW)}


def _answer(compute: Callable[[Request], Arrays], request: Request) -> Reply:
    """The ``arrays`` of a program, or why it has none and whether that is ``lasting``."""
    try:
        return {"arrays": packed(compute(request))}
    except Exception as error:  # noqa: BLE001 - TVM raises several types
        return _refused(error)


def candidates(request: Request) -> Reply:
    """Draw ``n`` schedules of ``task`` for ``target`` from ``seed``, with ``arrays``; ``n`` 0: TVM's default."""
    from cdmpp.ast.extract import extract
    from cdmpp.ast.table import AstTable
    from cdmpp.programs.replay import parse_target
    from cdmpp.programs.sampling import default_program, sample_programs
    from cdmpp.programs.task import Task

    task, target = Task(**request["task"]), parse_target(request["target"])
    try:
        if request["n"]:
            programs = sample_programs(task, target, request["n"], request["seed"], mutants=0.0)
        else:
            programs = [default_program(task, target)]
        found, refused = [], ""
        for program in programs:
            try:
                found.append((program.trace, extract(program.module, target)))
            except CdmppError as error:
                refused = refused or str(error)
        if not found:
            return {"reason": refused or "no schedule of it compiles for this target", "lasting": True}
        table = AstTable.from_asts([ast for _, ast in found])
    except Exception as error:  # noqa: BLE001 - TVM raises several types
        return _refused(error)
    arrays = {name: array for name, array in vars(table).items() if array is not None}
    return {"schedules": [schedule for schedule, _ in found], "arrays": packed(arrays)}


def read_script(request: Request) -> Reply:
    """Read the programs of the TVMScript file ``path`` for ``target``: JSON graphs with names, or ``refused``."""
    import tvm

    from cdmpp.programs.replay import parse_target
    from cdmpp.programs.script import read_script as read

    try:
        target = parse_target(request["target"])
        programs = read(Path(request["path"]), target)
    except Exception as error:  # noqa: BLE001 - whatever a file makes TVM meet
        where = "" if isinstance(error, CdmppError) else f"{request['path']}: "
        return {"refused": where + _reason(error)}
    return {"programs": [(p.name, tvm.ir.save_json(p.module)) for p in programs], "target": str(target)}


def _reason(error: BaseException) -> str:
    if isinstance(error, CdmppError):
        return str(error)
    if isinstance(error, RecursionError):
        return "the program is nested too deep for Python: give parts of long expressions a buffer of their own"
    return f"{type(error).__name__}: {str(error)[:500]}"


def ready(request: Request) -> Reply:
    """Import what every request needs, and what ``codes`` need where they are announced."""
    gc.disable()
    # tvm_ffi imports torch where there is one, which triples the time to start; nothing here reads a tensor of torch.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        from cdmpp.ast.native import native_extract
        from cdmpp.programs import replay, script  # noqa: F401

        if request.get("codes"):
            from cdmpp.machine_code.cpu import (
                code_vector,  # noqa: F401
                compile,  # noqa: F401
            )
    except ImportError as error:
        raise CdmppError(f"TVM cannot be imported ({error}): pip install 'cdmpp[tvm]'") from error

    native_extract()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # TVM makes many short-lived objects and hardly a cycle: a tenth of the time
    gc.enable()
    limit_memory(_MOST_BYTES)
    return {}


_MOST_BYTES = 3 * 10**9
"""Most memory of compiling a program. One that needs more, such as a loop of 1e9 turns to unroll, has no code."""

OPERATIONS: dict[str, Operation] = {
    "ready": ready,
    "script": read_script,
    "candidates": candidates,
    "asts": partial(_answer, _ast),
    "per_store": partial(_answer, _per_store),
    "codes": partial(_answer, _code),
    "gpu_codes": gpu_codes,
}

if __name__ == "__main__":
    serve(OPERATIONS)
