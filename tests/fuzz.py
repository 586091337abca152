"""Random mutants of everything that somebody else may have made, given to the real commands.

    python tests/fuzz.py --seed 0 --inputs 300 --folders 157      # a table, exit status 1 for any finding
    python tests/fuzz.py --seed 0 --only script:17 --keep         # one case again, its files stay

An input goes through ``cdmpp predict``, a model folder through ``load_model`` and a prediction. What may come of it is
an answer of finite numbers or a ``CdmppError``. Counted as findings: any other exception, an execution (a canary file,
or what the audit hook of ``fuzzing/audit`` sees in any process), an answer that is no number, a crash, and a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from fuzzing import inputs
from fuzzing.audit.sitecustomize import CANARY

OUTCOMES = ("answered", "refused", "raw traceback", "executed", "silent NaN", "crashed", "hung")
FINDINGS = OUTCOMES[2:]
START_LIMIT_S, CASE_LIMIT_S = 300.0, 120.0
_MARK = "@@fuzz "


def cases(n_inputs: int, n_folders: int) -> list[str]:
    """``kind:number``, the four kinds of inputs in turn."""
    found = [f"{inputs.KINDS[i % 4]}:{i // 4}" for i in range(n_inputs)]
    return found + [f"folder:{i}" for i in range(n_folders)]


def fuzz(seed: int, wanted: list[str], home: Path, progress: bool = True) -> list[dict[str, str]]:
    """Run the cases in child processes below ``home``; a row for each with case, kind, outcome and note."""
    from rich.progress import track

    rows, child = [], None
    _write_bases(home)
    try:
        if kinds := [kind for kind in inputs.KINDS if any(case.startswith(kind) for case in wanted)]:
            child = _Child(seed, home)
            if kinds != ["asts"]:  # a script first: what reads programs may have to be compiled, once
                kinds = list(dict.fromkeys(["script", *kinds]))
            for kind in kinds:
                if (row := child.run(f"valid {kind}:0"))["outcome"] not in ("answered", "executed"):
                    raise RuntimeError(f"mutants say nothing: the valid {kind} is {row['outcome']}: {row['note']}")
        for case in track(wanted, "fuzzing", disable=not progress):
            child = child or _Child(seed, home)
            row = child.run(case)
            if not child.alive:
                child.close()
                child = None
            rows.append({"case": case, "kind": case.split(":")[0], **row})
            if row["outcome"] in FINDINGS and progress:
                print(f"{case}: {row['outcome']}: {row['note']}", flush=True)
    finally:
        if child:
            child.close()
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """A line a kind, a column an outcome."""
    counts = Counter((row["kind"], row["outcome"]) for row in rows)
    lines = [f"{'':10}" + "".join(f"{name:>15}" for name in OUTCOMES)]
    for kind in (*inputs.KINDS, "folder"):
        lines.append(f"{kind:10}" + "".join(f"{counts[kind, name]:>15}" for name in OUTCOMES))
    return "\n".join(lines)


class _Child:
    """One process that tries cases, each within a limit; it and its own children end together."""

    def __init__(self, seed: int, home: Path):
        here = Path(__file__).resolve().parent
        environment = {
            **os.environ, "FUZZ_HOME": str(home), "FUZZ_LOG": str(home / "audit.log"), "TMPDIR": str(home / "tmp"),
            "CDMPP_CACHE": str(home / "cache"), "CDMPP_DATA": "", "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(map(str, [here / "fuzzing" / "audit", here.parent, here])),
        }  # fmt: skip
        for name in ("tmp", "work"):
            (home / name).mkdir(exist_ok=True)
        command = [sys.executable, str(here / "fuzz.py"), "--child", str(home), "--seed", str(seed)]
        self.process = subprocess.Popen(
            command, cwd=home / "work", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.limit_s, self._buffer = START_LIMIT_S, b""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def run(self, case: str) -> dict[str, str]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{case}\n".encode())
            self.process.stdin.flush()
        answer, self.limit_s = self._answer(self.limit_s), CASE_LIMIT_S
        return answer or {"outcome": "crashed", "note": f"exit status {self.process.wait()}"}

    def _answer(self, limit_s: float) -> dict[str, str] | None:
        assert self.process.stdout is not None
        end = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    if line.startswith(_MARK.encode()):
                        return json.loads(line[len(_MARK) :])
                if not selector.select(max(0.0, end - time.monotonic())):
                    self.close()
                    return {"outcome": "hung", "note": f"no answer within {limit_s:g} s"}
                read = os.read(self.process.stdout.fileno(), 1 << 16)
                if not read:
                    return None
                self._buffer += read

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _write_bases(home: Path) -> None:
    from fuzzing import folders

    if not (home / "bases").is_dir():
        inputs.write_bases(home / "bases")
        folders.write_bases(home / "bases")


def _child(seed: int, home: Path) -> None:
    """Read cases from stdin, answer each with one line on stdout."""
    log, out = home / "audit.log", os.dup(1)
    log.touch()
    for line in sys.stdin:
        case = line.strip()
        before = log.stat().st_size
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()) as told:
            row = _try(case, seed, home, shown, told)
        seen = log.read_text()[before:].splitlines()
        seen += [str(path) for path in home.rglob(f"{CANARY}*")]
        if seen:
            row = {"outcome": "executed", "note": seen[0]}
            for path in home.rglob(f"{CANARY}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.write(out, f"{_MARK}{json.dumps(row)}\n".encode())


def _try(case: str, seed: int, home: Path, shown: io.StringIO, told: io.StringIO) -> dict[str, str]:
    from cdmpp.errors import CdmppError

    kind, rng = case.split(":")[0], random.Random(f"{seed} {case}")
    out = home / "work" / case.replace(":", "-")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        return _try_folder(home, out, rng) if kind == "folder" else _try_input(kind, home, out, rng, shown, told)
    except CdmppError as error:
        return {"outcome": "refused", "note": str(error)}
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - this is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if f"{os.sep}cdmpp{os.sep}" in frame.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return {"outcome": "raw traceback", "note": f"{where} {type(error).__name__}: {str(error)[:160]}"}


def _try_input(
    kind: str, home: Path, out: Path, rng: random.Random, shown: io.StringIO, told: io.StringIO
) -> dict[str, str]:
    from cdmpp import cli

    if kind.startswith("valid "):
        kind = kind.removeprefix("valid ")
        path = inputs.valid(kind, home / "bases")
    else:
        path = inputs.write_mutant(kind, home / "bases", out, rng)
    asked = ["--device", inputs.DEVICE[kind], "--model", inputs.MODEL[kind], "--json", "--limit", "30"]
    status = cli.main(["predict", str(path), *asked])
    if status:
        return {"outcome": "refused", "note": told.getvalue()[:200]}
    programs = json.loads(shown.getvalue(), parse_constant=lambda name: name)["programs"]
    numbers = [x for row in programs for x in (row["latency_s"], *sum(row.get("intervals_s", {}).values(), []))]
    bad = [x for x in numbers if not isinstance(x, float) or not 0 < x < float("inf")]
    return {"outcome": "silent NaN" if bad else "answered", "note": repr(bad[:3]) if bad else ""}


def _try_folder(home: Path, out: Path, rng: random.Random) -> dict[str, str]:
    from fuzzing import folders

    import cdmpp
    from cdmpp.ast.table import read_asts

    folder = folders.write_mutant(home / "bases", out, rng)
    predictor = cdmpp.load_model(folder)
    asts = read_asts(home / "bases" / "asts" / "asts.parquet")[1]
    prediction = predictor.predict(asts, device=next(iter(predictor.trained_on)))
    numbers = [*prediction.latency_s, *(x for pair in prediction.intervals.values() for bound in pair for x in bound)]
    bad = [x for x in numbers if not 0 < x < float("inf")]
    return {"outcome": "silent NaN" if bad else "answered", "note": repr(bad[:3]) if bad else ""}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=300, help="mutants of the four kinds together")
    parser.add_argument("--folders", type=int, default=157, help="tampered model folders")
    parser.add_argument("--only", nargs="*", help="these cases, such as script:17")
    parser.add_argument("--keep", action="store_true", help="leave the mutants and say where")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.child:
        _child(options.seed, options.child)
        return 0
    home = Path(tempfile.mkdtemp(prefix="cdmpp-fuzz-")).resolve()
    try:
        rows = fuzz(options.seed, options.only or cases(options.inputs, options.folders), home)
    finally:
        print(f"files: {home}") if options.keep else shutil.rmtree(home, ignore_errors=True)
    print(table(rows))
    found = [row for row in rows if row["outcome"] in FINDINGS]
    for row in found:
        print(f"{row['case']}: {row['outcome']}: {row['note']}")
    print(f"{len(found)} findings in {len(rows)} cases, seed {options.seed}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
