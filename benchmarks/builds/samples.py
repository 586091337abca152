"""Profile: processor seconds of one question by stage, from samples of py-spy and perf, which both watch all processes.

perf counts processor time by command (compilers too). py-spy tells the Python stacks of threads that run or wait for a
processor. Python's seconds are those of perf, shared out as py-spy's samples are.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.builds.build import Build
from benchmarks.builds.row import ROWS, Row
from benchmarks.builds.runs import DATASETS, HERE
from benchmarks.builds.stage import TOOLS, stage_of

PROFILED = {
    "network-cold-unknown": 1, "network-cold": 1, "network-warm": 3, "torch-cold-unknown": 1, "torch-warm": 3,
    "predict-1": 1, "predict-512": 1, "features": 1, "cpu-code": 1, "gpu-code": 1, "training": 1, "replay": 1,
    "scoring": 1,
}  # fmt: skip
"""Rows that are profiled, and runs of each: samples are few where a run is short."""
EPOCHS = 10
"""Of the training, which is shortened: the stages of an epoch are those of all."""
_HZ = 199
_QUESTION = re.compile(r"^(\w+) \((?:.*/)?questions\.py:(\d+)\)$")
Seconds = dict[str, float]


@dataclass(frozen=True)
class Samples:
    """What both tools saw of one row and build, in all its runs."""

    stacks: Mapping[str, int]
    """Stack of Python, frames from outer to inner with semicolons -> samples."""
    commands: Mapping[str, int]
    """Name of a command or thread -> samples of perf, ``_HZ`` a processor second."""


def tools_missing() -> list[str]:
    """Name the tools that are not installed."""
    return [name for name in ("py-spy", "perf") if shutil.which(name) is None]


def sampled(name: str, build: Build, folder: Path) -> Samples:
    """Run a row of ``ROWS`` under both tools; caches and samples are kept below ``folder``."""
    row, stacks, commands = ROWS[name], Counter[str](), Counter[str]()
    environment = dict(build.environment(folder / "cache"))
    folder.mkdir(parents=True, exist_ok=True)
    if row.cache == "full":
        subprocess.run(_command(row, build, folder), check=True, capture_output=True, env=environment)
    for _ in range(PROFILED[name]):
        if row.cache == "empty":
            shutil.rmtree(folder / "cache", ignore_errors=True)
        shutil.rmtree(folder / "out", ignore_errors=True)
        one = _run(_command(row, build, folder), folder, environment)
        stacks.update(one.stacks)
        commands.update(one.commands)
    return Samples(dict(stacks), dict(commands))  # ``asdict`` would count the pairs of a Counter


def stages_of(name: str, samples: Samples) -> Seconds:
    """Return processor seconds of each stage, in one run; of a question only what is timed."""
    own, whole = Counter[str](), 0
    for stack, count in samples.stacks.items():
        frames = [frame for frame in stack.split(";") if not frame.startswith(("process ", "thread "))]
        stage = stage_of(frames)
        if stage is None:  # waits
            continue
        whole += count
        if not ROWS[name].question or _is_timed(frames):
            own[stage] += count
    timed = sum(own.values()) / max(whole, 1)
    per_run = 1 / (_HZ * PROFILED[name])
    seconds: Seconds = Counter()
    python = sum(count for command, count in samples.commands.items() if command not in (*TOOLS, "py-spy", "perf"))
    for stage, count in own.items():
        seconds[stage] += per_run * python * count / max(whole, 1)
    for command, count in samples.commands.items():
        if command in TOOLS:
            seconds[TOOLS[command]] += per_run * count * timed
    return dict(seconds)


def _is_timed(frames: Sequence[str]) -> bool:
    found = [(match[1], int(match[2])) for match in map(_QUESTION.match, frames) if match]
    return any(begin < line <= end for name, line in found for begin, end in [_timed_lines().get(name, (0, 0))])


@cache
def _timed_lines() -> Mapping[str, tuple[int, int]]:
    """Map each function of questions.py to the line where its clock begins and that of what it took."""
    text = (HERE / "questions.py").read_text()
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            own = range(node.lineno, node.end_lineno + 1)
            begins = [number for number in own if "Clock()" in lines[number - 1]]
            ends = [number for number in own if "clock.took(" in lines[number - 1]]
            if begins and ends:
                found[node.name] = (begins[0], ends[0])
    return found


def _command(row: Row, build: Build, folder: Path) -> list[str]:
    if row.question:
        return [str(build.python), str(HERE / "questions.py"), row.question, str(DATASETS)]
    words = [word.replace("DATASETS", str(DATASETS)).replace("OUT", str(folder / "out")) for word in row.command]
    return [str(build.command), *words, *([f"trainer.epochs={EPOCHS}"] if "train" in words else [])]


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> Samples:
    raw, events = folder / "stacks.txt", folder / "perf.data"
    spy = ["py-spy", "record", "--rate", str(_HZ), "--subprocesses", "--format", "raw", "--output", str(raw)]
    perf = ["perf", "record", "--quiet", "--event", "task-clock", "--freq", str(_HZ), "--output", str(events)]
    done = subprocess.run(
        [*perf, "--", *spy, "--", *command], cwd=folder, env=environment, text=True, capture_output=True
    )
    if done.returncode or not raw.is_file():
        sys.exit(f"{' '.join(command)} could not be profiled:\n{done.stderr[-2000:]}")
    told = subprocess.run(
        ["perf", "script", "--input", str(events), "--fields", "comm"], check=True, text=True, capture_output=True
    ).stdout
    stacks = Counter[str]()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[stack] += int(count)
    return Samples(stacks, Counter(line.strip() for line in told.splitlines() if line.strip()))
