"""All benchmarks, each in a process of its own: ``python benchmarks/run.py`` writes docs/BENCHMARKS.md.

Absolute rates depend on the machine and on what else it does; both sides of a ratio are measured in turns.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TEMPLATE = """\
# Benchmarks

Written by `python benchmarks/run.py` on {today}; do not edit by hand. The two sides of a ratio come from one run; the
rates themselves vary with the machine ({machine}).

## Feature extraction

Scheduled programs to features, one thread, lowering included: our compact AST against TVM's PerStoreFeature (164
numbers a store), in turns, the best of five rounds for each program.

{extraction}

## Model

Two CPU threads (one for batch 1), stored compact ASTs of CPU programs of the same operators; training with each
model's own settings. `reference` is the published architecture. Memory is the peak of the whole process, training
included.

{model}

## Training time to an error

Both models with their own settings on {programs:,} programs of {device} (split {split}, seed 0), two CPU threads. The
error to reach is the lowest validation MAPE of `reference`, {target:.1f} %, after {epochs} epochs.

{convergence}

## Loading

From a data set folder with stored compact ASTs to the last batch of the first epoch, one process. Memory is its peak.

{loading}

## Training from files

What `load_device` does with more than 100,000 records: vectors stay in mapped files. Here of both sizes: load, fit the
statistics of the model, take 20 steps, gather every batch of an epoch; one process. Memory is the peak of what is not a
mapped file (Linux: RssAnon); pages of mapped files stay in memory only while nothing else wants it.

{streaming}
"""
DOCUMENT = HERE.parent / "docs" / "BENCHMARKS.md"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        extraction = _run("extraction.py", Path(folder, "extraction.json"))
        asts = Path(folder, "asts.parquet")
        _run("stored.py", asts)
        models = {m: _run("model.py", Path(folder, f"{m}.json"), m, str(asts)) for m in ("cdmpp", "reference")}
        convergence = _run("convergence.py", Path(folder, "convergence.json"))
        sizes = ("5000", "50000")
        loading = [_run("loading.py", Path(folder, f"loading-{n}.json"), n) for n in sizes]
        sizes = ("10000", "100000")
        streaming = [_run("streaming.py", Path(folder, f"streaming-{n}.json"), n) for n in sizes]
    text = document(extraction, models, convergence, loading, streaming)
    DOCUMENT.parent.mkdir(exist_ok=True)
    temporary = DOCUMENT.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, DOCUMENT)
    print(text)


def _run(script: str, output: Path, *arguments: str) -> Any:
    print(f"{script} {' '.join(arguments[:1])}", file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(HERE.parent)}
    subprocess.run([sys.executable, str(HERE / script), str(output), *arguments], check=True, env=environment)
    return json.loads(output.read_text()) if output.suffix == ".json" else None


def document(
    extraction: list[dict[str, Any]],
    models: dict[str, dict[str, float]],
    convergence: dict[str, Any],
    loading: list[dict[str, float]],
    streaming: list[dict[str, float]],
) -> str:
    """The whole of BENCHMARKS.md."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return TEMPLATE.format(
        today=today,
        machine=_machine(),
        extraction="\n".join(_extraction_table(extraction)),
        model="\n".join(_model_table(models)),
        programs=convergence["programs"],
        device=convergence["device"],
        split=convergence["split"],
        target=convergence["target_mape"],
        epochs=convergence["epochs"]["reference"],
        convergence="\n".join(_convergence_table(convergence)),
        loading="\n".join(_loading_table(loading)),
        streaming="\n".join(_streaming_table(streaming)),
    )


def _extraction_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| operator | target | programs | ours (programs/s) | PerStoreFeature (programs/s) | ratio |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    groups = [(row["operator"], row["target"], [row]) for row in rows]
    groups += [("all", kind, [row for row in rows if row["target"] == kind]) for kind in ("cpu", "cuda")]
    groups += [("**all**", "**both**", rows)]
    for operator, target, group in groups:
        count, ours, theirs = (sum(row[key] for row in group) for key in ("programs", "ours", "per_store"))
        rates = f"{count / ours:,.0f} | {count / theirs:,.0f} | {theirs / ours:.2f}"
        lines.append(f"| {operator} | {target} | {count} | {rates} |")
    return lines


def _model_table(models: dict[str, dict[str, float]]) -> list[str]:
    ours, other = models["cdmpp"], models["reference"]
    titles = {
        "parameters": "parameters",
        "batch_1": "predictions/s, batch 1",
        "batch_512": "predictions/s, batch 512",
        "training": "training samples/s",
        "memory_mb": "peak memory (MB)",
    }
    lines = ["| | cdmpp | reference | cdmpp / reference |", "|---|---:|---:|---:|"]
    rows = [(title, ours[key], other[key]) for key, title in titles.items()]
    return lines + [f"| {title} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |" for title, a, b in rows]


def _convergence_table(found: dict[str, Any]) -> list[str]:
    lines = ["| | cdmpp | reference | cdmpp / reference |", "|---|---:|---:|---:|"]
    titles = {"reached_s": "time to that error (s)", "total_s": "whole training (s)", "best_mape": "lowest error (%)"}
    for key, title in titles.items():
        ours, other = found[key]["cdmpp"], found[key]["reference"]
        ratio = "never reached" if ours is None else f"{ours / other:.3f}"
        lines.append(f"| {title} | {'–' if ours is None else f'{ours:,.1f}'} | {other:,.1f} | {ratio} |")
    return lines


def _streaming_table(rows: list[dict[str, float]]) -> list[str]:
    lines = ["| programs | vectors in files (MB) | load (s) | rest (s) | memory (MB) | of it before loading (MB) |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    keys = ("features_mb", "load_s", "rest_s", "anonymous_mb", "start_mb")
    digits = (0, 1, 1, 0, 0)
    for row in rows:
        values = (f"{row[key]:,.{n}f}" for key, n in zip(keys, digits, strict=True))
        lines.append(f"| {row['programs']:,} | {' | '.join(values)} |")
    return lines


def _loading_table(rows: list[dict[str, float]]) -> list[str]:
    lines = ["| programs | load (s) | batches (s) | peak memory (MB) |", "|---:|---:|---:|---:|"]
    keys = ("load_s", "batches_s")
    for row in rows:
        seconds = " | ".join(f"{row[key]:.1f}" for key in keys)
        lines.append(f"| {row['programs']:,.0f} | {seconds} | {row['memory_mb']:,.0f} |")
    return lines


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
