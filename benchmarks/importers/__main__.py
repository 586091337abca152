"""TVM's importers, operator by operator: ``python -m benchmarks.importers --out FOLDER``.

Needs, beside ``make install``, ``onnxruntime`` (right results under older operator sets) and ``expecttest`` (torch's
own operator tests); neither is a requirement of the product. Each case runs in a child process, since TVM may crash;
finished cases are kept in ``FOLDER/trials.jsonl``, so a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from benchmarks.importers.case import Case
from benchmarks.importers.onnx_cases import onnx_cases
from benchmarks.importers.torch_cases import Tried, together, torch_groups
from benchmarks.importers.trial import CRASHED, RIGHT, Outcome, try_case

LIMIT_S, LIMIT_BYTES = 120.0, 6 << 30
"""Of one case."""


def main() -> None:
    """Try what was not tried yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("outputs/importers"))
    parser.add_argument("--only", default="", help="cases whose key holds this text")
    parser.add_argument("--source", choices=("onnx", "torch"), help="cases of one source")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "trials.jsonl"
    done = {json.loads(line)["key"] for line in path.read_text().splitlines()} if path.exists() else set()
    import tvm.relax.frontend.onnx
    import tvm.relax.frontend.torch  # noqa: F401 - children inherit what is imported

    with path.open("a") as file:
        if options.source != "torch":
            for case in onnx_cases():
                if case.key not in done and options.only in case.key:
                    _write(file, case, _in_child(case))
        if options.source != "onnx":
            for group in torch_groups():
                _try_group(file, [one for one in group if f"torch/{one.name}" not in done and options.only in one.name])


def _try_group(file: IO[str], group: Sequence[Tried]) -> None:
    """As one network, and one by one where that is not right."""
    whole = together(group)
    right = whole is not None and _in_child(whole).outcome == RIGHT
    for place, one in enumerate(group):
        if right and whole is not None:
            part = replace(whole, name=one.name, setting=one.setting, operators=whole.parts[place])
            _write(file, part, Outcome(RIGHT))
        elif (case := one.case()) is not None:
            _write(file, case, _in_child(case))


def _write(file: IO[str], case: Case, found: Outcome) -> None:
    row = {"key": case.key, "operators": case.operators, "setting": case.setting, **asdict(found)}
    print(json.dumps(row), file=file, flush=True)


def _in_child(case: Case) -> Outcome:
    """``try_case`` in a forked process with a limit of time and memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
        found = try_case(case)
        os.write(writing, json.dumps(asdict(found)).encode()[:60_000])
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
    return Outcome(**json.loads(text))


if __name__ == "__main__":
    main()
