"""Runs of a row in both builds, in turns: medians, and whether the answers agree."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.builds.build import REPOSITORY, Build
from benchmarks.builds.row import Row

HERE = Path(__file__).resolve().parent
DATASETS = REPOSITORY / "datasets"
Runs = list[dict[str, Any]]


def measured(row: Row, builds: Sequence[Build], say: Callable[[str], None]) -> dict[str, Any]:
    """Run a row in all ``builds``, the first of which is the baseline; its medians by name of build."""
    runs: dict[str, Runs] = {build.name: [] for build in builds}
    with tempfile.TemporaryDirectory() as folder:
        caches = {build.name: Path(folder) / build.name for build in builds}
        if row.cache == "full":
            for build in builds:
                say(f"filling the cache of {build.name}")
                _run(row, build, caches[build.name], Path(folder))
        for turn in range(row.runs):
            for build in builds if turn % 2 == 0 else builds[::-1]:
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    cache = Path(scratch) / "cache" if row.cache == "empty" else caches[build.name]
                    took = _run(row, build, cache, Path(scratch))
                runs[build.name].append(took)
                say(f"run {turn + 1} of {row.runs}, {build.name}: {took['cpu_s']:.4g} s of processors, "
                    f"{took['wall_s']:.4g} s, others took {took['others']:.2f} cores")  # fmt: skip
    found: dict[str, Any] = {name: _medians(own) for name, own in runs.items()}
    answers = [[own["answer"] for own in runs[build.name]] for build in builds]
    found["difference"] = difference(answers[-1][-1], answers[0][-1])
    return found


def difference(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Largest relative difference of two answers; None where they have not as many numbers."""
    if len(one) != len(other):
        return None
    return max((abs(a - b) / max(abs(a), abs(b)) for a, b in zip(one, other, strict=True) if a != b), default=0.0)


def _medians(runs: Runs) -> dict[str, float]:
    names = [name for name in runs[0] if name != "answer"]
    return {"runs": len(runs), **{name: statistics.median(own[name] for own in runs) for name in names}}


def _run(row: Row, build: Build, cache: Path, scratch: Path) -> dict[str, Any]:
    """One run: ``cpu_s``, ``wall_s``, cores that ``others`` took, ``answer``, of a question what else it says."""
    report, out = scratch / "took.json", scratch / "out"
    if row.question:
        command = [str(build.python), str(HERE / "questions.py"), row.question, str(DATASETS)]
    else:
        places = {"DATASETS": str(DATASETS), "OUT": str(out)}
        words = [_placed(word, places) for word in row.command]
        command = [str(build.command), *words]
    environment = dict(build.environment(cache))
    environment.pop("OMP_NUM_THREADS")
    if row.threads is not None:
        environment["OMP_NUM_THREADS"] = str(row.threads)
    before = _busy_s()
    done = subprocess.run(
        [sys.executable, str(HERE / "clocked.py"), str(report), *command], cwd=scratch, env=environment, text=True,
        capture_output=True,
    )  # fmt: skip
    busy_s = _busy_s() - before
    if done.returncode:
        sys.exit(f"{build.name}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    took = json.loads(report.read_text())
    others = max(0.0, (busy_s - took["cpu_s"]) / took["wall_s"])
    told = json.loads(done.stdout.splitlines()[-1]) if row.question else {"answer": _answer(row, done.stdout, out)}
    return {"cpu_s": took["cpu_s"], "wall_s": took["wall_s"], "others": others, **told}


def _placed(word: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        word = word.replace(name, path)
    return word


def _answer(row: Row, output: str, out: Path) -> list[float]:
    if row.answer == "none":
        return []
    if row.answer.endswith(".json"):
        return [float(json.loads((out / row.answer).read_text())["validation"]["mape"])]
    value = json.loads(output)
    return list(_numbers(value if row.answer == "all" else value[row.answer]))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def _busy_s() -> float:
    """Seconds that all processors of the machine have worked; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    user, nice, system, _, _, interrupts, soft, *_ = map(int, stat.read_text().splitlines()[0].split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
