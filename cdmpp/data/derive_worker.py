"""Child process of ``derive``: makes programs and writes what TVM computes from them, in chunks of some seconds.

One request a line on standard input; answers are lines, one a program, so that the parent knows where this process
was when it crashed or hung.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError

_WRITE_AFTER_S = 10.0
"""What a kill can lose."""
_FOR_NOW = (OSError, MemoryError, ImportError)
"""What the machine lacks today is no property of a program."""


class _Source(NamedTuple):
    workload: str
    schedule: str
    target: str
    graph: bool
    """``workload`` is a JSON graph that the parent made, not TVMScript."""

    def scheduled(self) -> Any:
        """``tvm.IRModule``."""
        from cdmpp.programs.replay import parse_workload, replay_on

        module = _module_of_graph(self.workload) if self.graph else parse_workload(self.workload)
        return replay_on(module, self.schedule).mod if self.schedule else module

    def program(self) -> Any:
        from cdmpp.programs.replay import parse_target
        from cdmpp.programs.task import Program

        return Program(self.scheduled(), parse_target(self.target))


@lru_cache(maxsize=64)
def _module_of_graph(text: str) -> Any:
    import tvm

    return tvm.ir.load_json(text)


def _ast(source: _Source) -> Any:
    from cdmpp.ast.extract import extract

    program = source.program()
    return extract(program.module, program.target)


def _write_asts(path: Path, rows: list[tuple[str, Any]]) -> None:
    from cdmpp.ast.table import AstTable, write_asts

    write_asts(path, [key for key, _ in rows], AstTable.from_asts(ast for _, ast in rows))


def _per_store(source: _Source) -> Any:
    from cdmpp.data.per_store import extract_rows
    from cdmpp.programs.replay import parse_target, replay_schedule

    return extract_rows(replay_schedule(source.workload, source.schedule), parse_target(source.target))


def _write_per_store(path: Path, rows: list[tuple[str, Any]]) -> None:
    from cdmpp.data.per_store import write_rows

    write_rows(path, rows)


def _code(source: _Source) -> Any:
    from tvm.runtime import enabled

    from cdmpp.machine_code.code_vector import code_vector
    from cdmpp.machine_code.compile import compiled

    if not enabled("llvm"):
        raise ImportError("this TVM was built without LLVM")
    return code_vector(*compiled(source.program()))


def _write_codes(path: Path, rows: list[tuple[str, Any]]) -> None:
    from cdmpp.data.codes import write_codes

    write_codes(path, dict(rows))


HANDLERS: dict[str, tuple[Callable[[_Source], Any], Callable[[Path, list[tuple[str, Any]]], None]]] = {
    "asts": (_ast, _write_asts),
    "per_store": (_per_store, _write_per_store),
    "codes": (_code, _write_codes),
}
"""Kind -> (what is computed of one program, how several of them are written)."""


def derive(request: dict[str, Any], answer: Callable[..., None]) -> None:
    """Compute ``request["kind"]`` of each program; files go beside ``request["path"]``, numbered."""
    compute, write = HANDLERS[request["kind"]]
    path, programs, workloads = Path(request["path"]), request["programs"], request["workloads"]
    rows: list[tuple[str, Any]] = []
    failed: dict[str, str] = {}
    for_now: dict[str, str] = {}
    first, written_at = 0, time.monotonic()
    for count, (key, workload, *rest) in enumerate(programs, start=1):
        try:
            rows.append((key, compute(_Source(workloads[workload], *rest))))
        except _FOR_NOW as error:
            for_now[key] = _reason(error)
        except Exception as error:  # TVM raises several types
            failed[key] = _reason(error)
        if count < len(programs) and time.monotonic() - written_at < _WRITE_AFTER_S:
            answer(done=count)
            continue
        if rows:
            write(path.with_name(f"{path.stem}-{first:03d}{path.suffix}"), rows)
        answer(stored=count, failed=failed, for_now=for_now, last=count == len(programs))
        rows, failed, for_now, first, written_at = [], {}, {}, count, time.monotonic()


def read_script(request: dict[str, Any], answer: Callable[..., None]) -> None:
    """The programs of a TVMScript file as JSON graphs."""
    import tvm

    from cdmpp.programs.replay import parse_target
    from cdmpp.programs.script import read_script as read

    try:
        target = parse_target(request["target"])
        programs = read(Path(request["path"]), target)
    except CdmppError as error:
        answer(refused=str(error), last=True)
    except Exception as error:  # whatever a file makes TVM meet
        answer(refused=f"{request['path']}: {_reason(error)}", last=True)
    else:
        answer(programs=[(p.name, tvm.ir.save_json(p.module)) for p in programs], target=str(target), last=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, CdmppError):
        return str(error)
    if isinstance(error, RecursionError):
        return "the program is nested too deep for Python: give parts of long expressions a buffer of their own"
    return f"{type(error).__name__}: {str(error)[:500]}"


def _prepare() -> list[str]:
    """Import what every request needs; returns warnings for the user."""
    gc.disable()
    # tvm_ffi imports torch where there is one, which triples the time to start; nothing here reads a tensor of torch.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        from cdmpp.ast.native import native_extract
        from cdmpp.programs import replay, script  # noqa: F401

        native_extract()
    gc.freeze()
    gc.enable()
    return [str(warning.message) for warning in caught if "native extractor" in str(warning.message)]


def serve() -> None:
    """Answer requests on standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what TVM prints must not mix with the answers

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        answer(ready=True, warnings=_prepare())
    except ImportError as error:
        answer(error=f"TVM cannot be imported ({error}): pip install 'cdmpp[tvm]'", last=True)
        return
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            (read_script if request["kind"] == "script" else derive)(request, answer)
        except BrokenPipeError:  # nobody listens any more
            return
        except (OSError, CdmppError) as error:  # a full disk is the caller's to report
            answer(error=f"cannot derive {request['kind']} into {request['path']}: {error}", last=True)


if __name__ == "__main__":
    serve()
