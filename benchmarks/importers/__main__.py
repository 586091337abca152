"""TVM's importers, operator by operator: ``python -m benchmarks.importers --out FOLDER [--judge]``.

Needs, beside ``make install``, ``onnxruntime`` (right results under older operator sets) and ``expecttest`` (torch's
own operator tests); neither is a requirement of the product. Each case runs in a child process, since TVM may crash;
finished cases are kept in ``FOLDER/trials.jsonl``, so that a stopped run goes on. ``--judge`` tries nothing, but asks
what the product says; delete ``FOLDER/verdicts.jsonl`` where that has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

from benchmarks.importers.case import Case
from benchmarks.importers.judge import Verdict, judge
from benchmarks.importers.onnx_cases import onnx_cases
from benchmarks.importers.page import write_importers
from benchmarks.importers.torch_cases import Tried, together, torch_groups
from benchmarks.importers.trial import CRASHED, HERE, LEFT_OUT, REFUSED, RIGHT, Outcome, try_case
from cdmpp.programs.known_faults import known_faults

LIMIT_S, LIMIT_BYTES = 120.0, 6 << 30
"""Limits of one case."""


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

    trials, judged = options.out / "trials.jsonl", options.out / "verdicts.jsonl"
    if not options.judge:
        with trials.open("a") as file:
            for cases in _tried(options.source, {row["key"] for row in _rows(trials)}, options.only):
                _write(file, [(case, _in_child(case, try_case)) for case in cases])
    wanted = {row["key"] for row in _rows(trials) if _asks_for_a_verdict(row)} - {row["key"] for row in _rows(judged)}
    with judged.open("a") as file:
        for case in _wanted(wanted, {row["key"] for row in _rows(trials)}):
            _write(file, [(case, _in_child(case, judge))])
    write_importers(_rows(trials), _rows(judged))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _asks_for_a_verdict(row: dict[str, Any]) -> bool:
    """What is wrong; of ONNX, what is right of an operator of which something is refused by the table."""
    if row["outcome"] not in (RIGHT, REFUSED, HERE, LEFT_OUT):
        return True
    known = {fault.operator for fault in known_faults() if fault.source == "onnx" and not fault.same_work}
    return row["key"].startswith("onnx/") and bool(known & set(row["operators"]))


def _tried(source: str | None, done: set[str], only: str) -> Iterator[Iterable[Case]]:
    """Cases of a source that are not ``done``, in batches that are stored as one."""
    if source != "torch":
        yield from ([case] for case in onnx_cases(done) if case.key not in done and only in case.key)
    if source != "onnx":
        names = _names(done)
        yield from map(_of_group, torch_groups(lambda name: only in name and name not in names))


def _wanted(keys: set[str], known: set[str]) -> Iterator[Case]:
    """Those of these keys."""
    if any(key.startswith("onnx/") for key in keys):
        yield from (case for case in onnx_cases(known - keys) if case.key in keys)
    if any(key.startswith("torch/") for key in keys):
        left = {key for key in keys if key.startswith("torch/")}
        for one in chain.from_iterable(torch_groups(_names(left).__contains__)):
            if (key := f"torch/{one.name}") in left and (case := one.case()):
                yield case
            left.discard(key)
            if not left:
                return  # what comes later takes seconds to make


def _names(keys: set[str]) -> set[str]:
    """Return the names of layers and forms, and of operators that have samples."""
    return {key.split("/")[1] for key in keys}


def _of_group(group: Sequence[Tried]) -> Iterator[Case]:
    """Each, but those that are right as one network, which takes a fraction of the time; else each half so."""
    if len(group) == 1:
        one = group[0]
        yield one.case() or Case("torch", one.name, (), one.setting, None, (), (), known=Outcome(LEFT_OUT))
    elif (whole := together(group)) is not None and (outcome := _in_child(whole, try_case)).outcome == RIGHT:
        for one, operators in zip(group, whole.parts, strict=True):
            yield replace(whole, name=one.name, setting=one.setting, operators=operators, known=outcome)
    elif group:
        yield from _of_group(group[: len(group) // 2])
        yield from _of_group(group[len(group) // 2 :])


def _write(file: IO[str], found: Sequence[tuple[Case, Outcome | Verdict]]) -> None:
    rows = (
        {"key": case.key, "operators": case.operators, "setting": case.setting, **asdict(one)} for case, one in found
    )
    file.writelines(f"{json.dumps(row)}\n" for row in rows)
    file.flush()


def _in_child(case: Case, what: Callable[[Case], Any]) -> Any:
    """``what(case)`` in a forked process with a limit of time and memory."""
    if case.known:
        return case.known
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
