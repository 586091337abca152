"""Child process of ``derive``: replays schedules and writes what TVM computes from them, one chunk a request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError

_Programs = list[tuple[str, str, str, str]]
"""(record id, workload, schedule, target) each."""


def derive_asts(programs: _Programs, path: Path) -> dict[str, str]:
    """Write the compact ASTs of ``programs``; returns record id -> reason of those that failed."""
    from cdmpp.ast.extract import extract_many
    from cdmpp.ast.table import AstTable, write_asts
    from cdmpp.programs.replay import replay

    failed: dict[str, str] = {}
    replayed = []
    for identity, workload, schedule, target in programs:
        try:
            replayed.append((identity, replay(workload, schedule, target)))
        except CdmppError as error:
            failed[identity] = str(error)
    try:
        asts = list(zip([i for i, _ in replayed], extract_many([p for _, p in replayed]), strict=True))
    except Exception:  # find out which: TVM and the extractor raise several types
        asts = []
        for identity, program in replayed:
            try:
                asts.append((identity, extract_many([program])[0]))
            except Exception as error:
                failed[identity] = f"{type(error).__name__}: {str(error)[:500]}"
    if asts:
        write_asts(path, [identity for identity, _ in asts], AstTable.from_asts(ast for _, ast in asts))
    return failed


def derive_per_store(programs: _Programs, path: Path) -> dict[str, str]:
    """Write the per-store rows of ``programs`` as TVM's own feature extractor gives them."""
    from cdmpp.data.per_store import extract_rows, write_rows
    from cdmpp.programs.replay import parse_target, replay_schedule

    failed: dict[str, str] = {}
    rows = []
    for identity, workload, schedule, target in programs:
        try:
            rows.append((identity, extract_rows(replay_schedule(workload, schedule), parse_target(target))))
        except Exception as error:  # TVM raises several types
            failed[identity] = f"{type(error).__name__}: {str(error)[:500]}"
    if rows:
        write_rows(path, rows)
    return failed


def derive_codes(programs: _Programs, path: Path) -> dict[str, str]:
    """Write the code vectors of ``programs``: each is compiled."""
    from cdmpp.code.code_vector import code_vector
    from cdmpp.code.compile import compiled
    from cdmpp.data.codes import write_codes
    from cdmpp.programs.replay import replay

    failed: dict[str, str] = {}
    codes = {}
    for identity, workload, schedule, target in programs:
        try:
            codes[identity] = code_vector(*compiled(replay(workload, schedule, target)))
        except Exception as error:  # TVM raises several types
            failed[identity] = f"{type(error).__name__}: {str(error)[:500]}"
    if codes:
        write_codes(path, codes)
    return failed


HANDLERS: dict[str, Callable[[_Programs, Path], dict[str, str]]] = {
    "asts": derive_asts,
    "per_store": derive_per_store,
    "codes": derive_codes,
}


def serve() -> None:
    """Answer requests on standard input until it closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what TVM prints must not mix with the answers
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        workloads = request["workloads"]
        programs = [(identity, workloads[w], schedule, target) for identity, w, schedule, target in request["programs"]]
        try:
            answer: dict[str, Any] = {"failed": HANDLERS[request["kind"]](programs, Path(request["path"]))}
        except (OSError, CdmppError) as error:  # a full disk is the caller's to report
            answer = {"error": f"cannot derive {request['kind']} into {request['path']}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
