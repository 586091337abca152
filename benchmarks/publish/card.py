"""The data card: what a data set folder holds, every figure computed from its records.

``python -m benchmarks.publish.card datasets`` writes ``datasets/README.md``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.publish.markdown import table, write_page
from cdmpp import devices
from cdmpp.data.plots import save_data_plots
from cdmpp.data.records import read_records
from cdmpp.data.statistics import NETWORK, DeviceStatistics, statistics
from cdmpp.platform.files import FAILURES_FILE, PLAN_FILE, read_json, read_lines

_REASON = 120
"""Characters of a reason that are shown; the last ones, since errors of other libraries end with what went wrong."""
_PREFACE = """# Data card

Measured tensor programs that ship with this repository. Written by `python -m benchmarks.publish.card datasets`; every
figure comes from the records. The columns of the Parquet files are described in `cdmpp/data/schema.py` and
`cdmpp/programs/task.py`.

**How it was measured.** Networks with random weights are imported from `transformers`, `torchvision` and a few
hand-made ones (`conf/data/networks.yaml`), split into tasks (one fused operator each), and each task is scheduled by
TVM MetaSchedule at random and by evolution with a random cost model, so that slow, typical and good schedules all
occur. Each program is compiled by LLVM for the device's target and timed on pinned cores, while every other working
process of the machine was stopped (`.progress.json` in the folder tells a watcher when; `xeon-emeraldrapids`:
a machine that did nothing else): warm caches, two visits at least a minute apart, a third where they differ by more
than 5 %, and one more where the reference kernels were slow. The label is the minimum over all visits; every repeat is
kept.
Every record names its protocol. `cpu-v1` took 10 repeats of at least 10 ms a visit, `cpu-v2` 10 of 5 ms, `cpu-v3` 30
of 1 ms (each fewer for slow programs): the host's neighbours come and go within milliseconds, so many short repeats
find more quiet ones in half the time.

**Limits.** A virtual machine whose exact processor model and whose neighbours are hidden; static shapes, fp32; warm
caches. Programs that take longer than a second, and tasks above 4 GFLOP, are left out. Flags among the inputs, such
as attention masks, are all set (`cpu-v4`): a softmax that is fused with its mask must not skip work.

**Licence.** Apache-2.0, as the rest of the repository.
"""


def card(folder: Path) -> str:
    """Markdown section of one data set folder.

    Raises:
        DataError: the folder holds no records.
    """
    lines = [f"## {folder.name}", ""]
    for entry in statistics(folder):
        lines += _device(entry, folder)
    return "\n".join(lines)


def _device(entry: DeviceStatistics, folder: Path) -> list[str]:
    ratio, records = entry.schedule_range, read_records(folder, entry.device)
    schedules = Counter(record.task_id for record in records).values()
    protocols = sorted(Counter(record.protocol for record in records).items())
    rows = [
        ("device", f"`{entry.device}`: {devices.get(entry.device).title}"),
        ("programs", f"{entry.programs:,}"),
        ("tasks", f"{entry.tasks:,}"),
        ("networks", f"{entry.networks} ({len(entry.programs_by_network)} with their input variants)"),
        ("programs per task, p10 / p50 / p90", _quantiles(schedules, (10, 50, 90), "{:.0f}")),
        ("latency in us, p1 / p10 / p50 / p90 / p99", _quantiles(entry.latency_s * 1e6, (1, 10, 50, 90, 99), "{:.4g}")),
        ("slowest over fastest schedule of a task, p50 / p90", _quantiles(ratio, (50, 90), "{:.3g}")),
        ("median over fastest schedule of a task, p50 / p90", _quantiles(entry.best_over_typical, (50, 90), "{:.3g}")),
        ("difference of the two best visits in %, p50 / p90", _quantiles(entry.spread * 100, (50, 90), "{:.2f}")),
        ("the same, mean", f"{entry.spread.mean() * 100:.2f} %"),
        ("flagged (over 5 %)", f"{np.mean([record.flagged for record in records]) * 100:.1f} %"),
        ("programs by protocol", ", ".join(f"{name} {n:,}" for name, n in protocols)),
        ("software", records[-1].software),
        ("not recorded", ", ".join(f"{n} {cause}" for cause, n in entry.failures.items()) or "nothing"),
    ]
    op_classes = [[name, f"{n:,}", entry.tasks_by_class[name]] for name, n in entry.programs_by_class.items()]
    lines = [*table(["", ""], rows, left=2), "", *_noise_floor(entry)]
    lines += table(["op class", "programs", "tasks"], op_classes)
    if reasons := not_imported(folder, entry.device):
        lines += ["", "Networks that could not be imported:", ""]
        lines += [f"- `{name}`: {reason[-_REASON:]}" for name, reason in reasons.items()]
    return [*lines, ""]


def not_imported(folder: Path, device: str) -> dict[str, str]:
    """Networks of the zoo that could not be imported, with the reason."""
    plan = folder / PLAN_FILE
    imported = read_json(plan)["networks"] if plan.exists() else ()
    names = {
        entry["id"].removeprefix(NETWORK): " ".join(str(entry.get("message", entry["cause"])).split())
        for entry in read_lines(folder / FAILURES_FILE)
        if entry.get("device") == device and entry["id"].startswith(NETWORK)
    }
    return {name: names[name] for name in sorted(set(names) - set(imported))}


def _noise_floor(entry: DeviceStatistics) -> list[str]:
    noise = entry.noise
    if noise is None:
        return []
    return [
        f"**Noise floor** of `{entry.device}`: {noise.programs} programs measured again, at least "
        f"{noise.hours_apart:.1f} hours later (`scripts/measure.py repeat={noise.programs}`). The label moves by "
        f"{100 * noise.mean:.2f} % on average, {100 * noise.median:.2f} % median, {100 * noise.p90:.2f} % p90; drift "
        f"of the median {100 * noise.drift:+.2f} %.",
        "",
    ]


def _networks(entries: Sequence[DeviceStatistics]) -> list[str]:
    """Networks x devices: programs of their tasks."""
    names = sorted({name for entry in entries for name in entry.programs_by_network})
    lines = ["## Networks", "", "Programs of the tasks of each network; a task that several share counts for each.", ""]
    counts = {name: [sum(entry.programs_by_network.get(name, {}).values()) for entry in entries] for name in names}
    rows = [[name, *(f"{n:,}" if n else "-" for n in row)] for name, row in counts.items()]
    return [*lines, *table(["network", *(entry.device for entry in entries)], rows), ""]


def _shared(entries: Sequence[DeviceStatistics], folders: Sequence[Path]) -> list[str]:
    """How many tasks the devices have in common."""
    if len(entries) < 2:
        return []
    tasks: dict[str, set[str]] = {}
    for folder in folders:
        for record in read_records(folder):
            tasks.setdefault(record.device, set()).add(record.task_id)
    common = set.intersection(*tasks.values())
    text = (
        f"All {len(tasks)} devices share {len(common):,} tasks; there are {len(set.union(*tasks.values())):,} in all."
    )
    return ["## Shared tasks", "", text, ""]


def _pictures(root: Path, entries: Sequence[DeviceStatistics]) -> list[str]:
    paths = save_data_plots(root / "images", entries)
    return ["## Pictures", "", *(f"![{path.stem}]({path.relative_to(root)})" for path in paths), ""]


def _quantiles(values: Iterable[float], at: tuple[int, ...], form: str) -> str:
    array = np.asarray(list(values), np.float64)
    return " / ".join(form.format(value) for value in np.percentile(array, at)) if len(array) else "-"


def main(root: Path) -> None:
    """Write ``root/README.md`` and ``root/images`` for all data sets below ``root``."""
    folders = sorted(path.parent for path in root.glob("*/dataset.json"))
    entries = [entry for folder in folders for entry in statistics(folder)]
    sections = [_PREFACE, *(card(folder) for folder in folders)]
    sections += ["\n".join(part) for part in (_shared(entries, folders), _networks(entries), _pictures(root, entries))]
    write_page(root / "README.md", [section for section in sections if section])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets"))
