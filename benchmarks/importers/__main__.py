"""TVM's importers, operator by operator: ``python -m benchmarks.importers --out FOLDER [--judge]``.

Needs, beside ``make install``, ``onnxruntime`` (right results under older operator sets) and ``expecttest`` (torch's
own operator tests); neither is a requirement of the product. Each case runs in a child process, since TVM may crash;
finished cases are kept in ``FOLDER/trials.jsonl``, so a stopped run goes on. ``--judge`` tries nothing, but asks what
the product says; delete ``FOLDER/verdicts.jsonl`` where that has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from benchmarks.importers.case import Case
from benchmarks.importers.judge import Verdict, judge
from benchmarks.importers.onnx_cases import onnx_cases
from benchmarks.importers.page import write_importers
from benchmarks.importers.torch_cases import Tried, together, torch_groups
from benchmarks.importers.trial import CRASHED, REFUSED, RIGHT, Outcome, try_case
from cdmpp.programs.known_faults import known_faults

LIMIT_S, LIMIT_BYTES = 120.0, 6 << 30
"""Of one case."""


def main() -> None:
    """Try what was not tried yet, judge what is not right, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("outputs/importers"))
    parser.add_argument("--only", default="", help="cases whose key holds this text")
    parser.add_argument("--source", choices=("onnx", "torch"), help="cases of one source")
    parser.add_argument("--judge", action="store_true", help="judge what was tried, and write the page; try nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    import tvm.relax.frontend.onnx
    import tvm.relax.frontend.torch  # noqa: F401 - children inherit what is imported

    trials = options.out / "trials.jsonl"
    if not options.judge:
        with trials.open("a") as file:
            for case in _cases(options.source, {row["key"] for row in _rows(trials)}, options.only):
                _write(file, case, _in_child(case, try_case))
    judged = options.out / "verdicts.jsonl"
    wanted = {row["key"] for row in _rows(trials) if _asks_for_a_verdict(row)} - {row["key"] for row in _rows(judged)}
    with judged.open("a") as file:
        for case in _cases(options.source, {row["key"] for row in _rows(trials)} - wanted, options.only, alone=True):
            if case.key in wanted:
                _write(file, case, _in_child(case, judge))
    write_importers(_rows(trials), _rows(judged))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _asks_for_a_verdict(row: dict[str, Any]) -> bool:
    """What is wrong, and what is right of an operator of which something is refused by the table."""
    known = {(fault.source, fault.operator) for fault in known_faults() if not fault.same_work}
    source = row["key"].partition("/")[0]
    return row["outcome"] not in (RIGHT, REFUSED) or any((source, name) in known for name in row["operators"])


def _cases(source: str | None, done: set[str], only: str, alone: bool = False) -> Iterator[Case]:
    """Those of a source that are not ``done``; ``alone``: none that were found right together with others."""
    if source != "torch":
        yield from (case for case in onnx_cases(done) if case.key not in done and only in case.key)
    if source != "onnx":
        for group in torch_groups():
            left = [one for one in group if f"torch/{one.name}" not in done and only in one.name]
            yield from (case for one in left if (case := one.case())) if alone else _of_group(left)


def _of_group(group: Sequence[Tried]) -> Iterator[Case]:
    """Each by itself, but those that are right as one network, which takes a fraction of the time."""
    whole = together(group)
    right = whole is not None and _in_child(whole, try_case).outcome == RIGHT
    for place, one in enumerate(group):
        if right and whole is not None:
            yield replace(whole, name=one.name, setting=one.setting, operators=whole.parts[place], known=RIGHT)
        elif (case := one.case()) is not None:
            yield case


def _write(file: IO[str], case: Case, found: Outcome | Verdict) -> None:
    row = {"key": case.key, "operators": case.operators, "setting": case.setting, **asdict(found)}
    print(json.dumps(row), file=file, flush=True)


def _in_child(case: Case, what: Callable[[Case], Any]) -> Any:
    """``what(case)`` in a forked process with a limit of time and memory."""
    if case.known:
        return Outcome(case.known)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
        found = what(case)
        os.write(writing, json.dumps([type(found).__name__, asdict(found)]).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], LIMIT_S)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not ready:
        return Outcome(CRASHED, f"no end within {LIMIT_S:.0f} s")
    if not text:
        return Outcome(CRASHED, f"ended with status {os.waitstatus_to_exitcode(status)}")
    kind, fields = json.loads(text)
    return {"Outcome": Outcome, "Verdict": Verdict}[kind](**fields)


if __name__ == "__main__":
    main()
