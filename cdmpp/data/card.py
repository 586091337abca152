"""The data card: what a data set folder holds, every figure computed from its records.

``python -m cdmpp.data.card datasets`` writes ``datasets/README.md``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.data.files import write_atomic
from cdmpp.data.records import read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.programs.task import Task

_PREFACE = """# Data card

Measured tensor programs that ship with this repository. Written by `python -m cdmpp.data.card datasets`; every figure
comes from the records. The columns of the Parquet files are described in `cdmpp/data/schema.py` and
`cdmpp/programs/task.py`.

**How it was measured.** Networks with random weights are imported from `transformers` and `torchvision`
(`conf/data/networks.yaml`), split into tasks (one fused operator each), and each task is scheduled by TVM MetaSchedule
at random and by evolution with a random cost model, so that slow, typical and good schedules all occur. Each program is
compiled by LLVM for the device's target and timed on one pinned core, while every other working process of the machine
was stopped (`phase_file=` of `scripts/profile.py` tells a watcher when): warm caches, 10 repeats of at least 10 ms
(fewer for slow programs), two visits at least a minute apart, a third where they differ by more than 5 %. The label is
the minimum over the visits; every repeat is kept (`cdmpp/measure/protocol.py`).

**Limits.** One core of a virtual machine whose exact processor model is hidden; static shapes, batch 1, fp32; warm
caches. Programs that take longer than a second, and tasks above 4 GFLOP, are left out.

**Licence.** Apache-2.0, as the rest of the repository.
"""


def card(folder: Path) -> str:
    """Markdown section of one data set folder.

    Raises:
        DataError: the folder holds no records.
    """
    records, tasks = read_records(folder), read_tasks(folder)
    if not records:
        raise DataError(f"{folder} holds no records: nothing to describe")
    lines = [f"## {folder.name}", ""]
    for device in sorted({record.device for record in records}):
        lines += _device([r for r in records if r.device == device], tasks, device)
        lines += _noise_floor(folder, device)
    failures = _failures(folder)
    if failures:
        lines += ["Not recorded: " + ", ".join(f"{n} {cause}" for cause, n in failures.most_common()) + ".", ""]
    return "\n".join(lines)


def _device(records: list[Record], tasks: dict[str, Task], name: str) -> list[str]:
    used = {record.task_id for record in records}
    latency = np.array([record.latency_s for record in records])
    spread = np.array([record.spread for record in records])
    per_task = Counter(record.task_id for record in records)
    counts = np.array(list(per_task.values()))
    extremes: dict[str, list[float]] = {}
    for record in records:
        extremes.setdefault(record.task_id, []).append(record.latency_s)
    width = [max(values) / min(values) for values in extremes.values() if len(values) >= 5]
    rows = [
        ("device", f"`{name}`: {devices.get(name).title}"),
        ("programs", f"{len(records):,}"),
        ("tasks", f"{len(used):,}"),
        ("networks", f"{len({n for task in used for n in tasks[task].networks})}"),
        ("programs per task, p10 / p50 / p90", _quantiles(counts, (10, 50, 90), "{:.0f}")),
        ("latency in us, p1 / p10 / p50 / p90 / p99", _quantiles(latency * 1e6, (1, 10, 50, 90, 99), "{:.4g}")),
        ("slowest over fastest schedule of a task, p50 / p90", _quantiles(width, (50, 90), "{:.3g}")),
        ("difference of the two best visits in %, p50 / p90", _quantiles(spread * 100, (50, 90), "{:.2f}")),
        ("the same, mean", f"{spread.mean() * 100:.2f} %"),
        ("flagged (over 5 %)", f"{np.mean([record.flagged for record in records]) * 100:.1f} %"),
        ("protocol", ", ".join(sorted({record.protocol for record in records}))),
        ("software", records[-1].software),
    ]
    lines = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows), ""]
    classes = Counter(tasks[record.task_id].op_class for record in records)
    class_tasks = Counter(tasks[task].op_class for task in used)
    lines += ["| op class | programs | tasks |", "|---|---|---|"]
    lines += [f"| {name} | {n:,} | {class_tasks[name]} |" for name, n in classes.most_common()]
    networks = Counter(network for record in records for network in tasks[record.task_id].networks)
    lines += ["", "| network | programs of its tasks |", "|---|---|"]
    lines += [f"| {name} | {n:,} |" for name, n in sorted(networks.items())]
    return [*lines, ""]


def _noise_floor(folder: Path, device: str) -> list[str]:
    path = folder / "repeats.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.is_file() else []
    entries = [entry for entry in entries if entry["device"] == device]
    if not entries:
        return []
    ratio = np.array([entry["again_s"] / entry["first_s"] for entry in entries])
    percent = 100 * np.abs(ratio - 1)
    hours, n = min(entry["hours_apart"] for entry in entries), len(entries)
    return [
        f"**Noise floor** of `{device}`: {n} programs measured again by the same protocol, at least {hours:.1f} hours "
        f"later (`scripts/profile.py repeat={n}`). The label moves by {percent.mean():.2f} % on average, "
        f"{np.median(percent):.2f} % median, {np.percentile(percent, 90):.2f} % p90; drift of the median "
        f"{100 * (np.median(ratio) - 1):+.2f} %.",
        "",
    ]


def _quantiles(values: Iterable[float], at: tuple[int, ...], form: str) -> str:
    known = np.asarray(list(values), np.float64)
    return " / ".join(form.format(value) for value in np.percentile(known, at)) if len(known) else "-"


def _failures(folder: Path) -> Counter[str]:
    path = folder / "failures.jsonl"
    if not path.is_file():
        return Counter()
    return Counter(json.loads(line)["cause"] for line in path.read_text().splitlines() if line.strip())


def main(root: Path) -> None:
    folders = sorted(path.parent for path in root.glob("*/dataset.json"))
    text = "\n".join([_PREFACE, *(card(folder) for folder in folders)])

    def write(path: Path) -> None:
        path.write_text(text)

    write_atomic(root / "README.md", write)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets"))
