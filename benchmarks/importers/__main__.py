"""TVM's importers, operator by operator: ``python -m benchmarks.importers --out FOLDER [--only TEXT] [--page]``.

Needs, beside ``make install``, ``onnxruntime`` (the right results under older operator sets) and ``expecttest`` (torch's
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
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchmarks.importers.case import Case
from benchmarks.importers.onnx_cases import onnx_cases
from benchmarks.importers.torch_cases import torch_cases
from benchmarks.importers.trial import CRASHED, Outcome, try_case

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

    began, count = time.monotonic(), 0
    with path.open("a") as file:
        for case in _cases(options.source):
            if case.key in done or options.only not in case.key:
                continue
            done.add(case.key)
            found = _in_child(case)
            row = {"key": case.key, "operators": case.operators, "setting": case.setting, **asdict(found)}
            print(json.dumps(row), file=file, flush=True)
            count += 1
            if count % 100 == 0:
                print(f"{count} cases, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _cases(source: str | None) -> Iterator[Case]:
    makers = {"onnx": onnx_cases, "torch": torch_cases}
    return chain.from_iterable(maker() for name, maker in makers.items() if source in (None, name))


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
