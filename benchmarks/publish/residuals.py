"""What carries the error that is left: by class of operators, before and after a change of a model, and by causes.

``python -m benchmarks.publish.residuals before=COMMIT [model=cpus] [publish_it=true]`` answers the test programs of a
shipped model, and compares with the card that it had in COMMIT. Programs are told apart by what their machine code says
of its own counts (known, or decided by data), by how much of their time the misses of the second-level cache take as
the datasheet has it, and by which cache holds their data and how far their visits differ. A minute of a CPU.
"""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import cdmpp
from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import table
from benchmarks.publish.measured import change
from benchmarks.publish.model_data import data_of
from cdmpp.data.batching import ProgramTensors, ordered_batches
from cdmpp.data.dataset import LatencyDataset
from cdmpp.devices import sheets_of
from cdmpp.machine_code.cpu.code_features import CODE_NAMES
from cdmpp.model.analytic import PARTS, kernel_parts
from cdmpp.predict.rows import predict_rows

PAGE, TITLE = "accuracy", "What carries the error that is left"
_MEMORY = [PARTS.index(f"cpu_{name}") for name in ("l2_misses", "l3_misses", "page_misses", "page_walks")]
_SHARE = 0.2
"""Of the measured time, from which on data from beyond the second-level cache counts."""
_UNKNOWN = CODE_NAMES.index("unknown_loops")
SPREADS = (0.01, 0.05)
"""Visits of a label differ by less than the first, by less than the second, or by more."""
CACHES = ("l1_kb_per_core", "l2_kb", "l3_kb")
COLUMNS = ("class", "programs", "before", "now", "bias", "counts known", "unknown", "in caches", "data from beyond")


def memory_share(records: LatencyDataset, rows: np.ndarray) -> np.ndarray:
    """(n,) seconds that misses of the second-level cache take by the datasheet, over those measured."""
    names = [str(name) for name in records.devices[rows]]
    programs = ProgramTensors.build(records.asts.take(rows), sheets_of(names), names)
    seconds = np.empty(len(rows))
    for batch in ordered_batches(programs, np.arange(len(rows))):
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)[:, :, _MEMORY]
        seconds[batch.rows.numpy()] = (parts * batch.kernel_mask[..., None]).sum((1, 2)).numpy()
    return seconds / records.latency_s[rows]


def caches_of(records: LatencyDataset, rows: np.ndarray) -> np.ndarray:
    """(n,) how many of ``CACHES`` are too small for what a program reads and writes."""
    sheets = sheets_of(str(name) for name in np.unique(records.devices[rows]))
    kib = np.array([[float(sheets[str(name)].spec[key] or 0) for key in CACHES] for name in records.devices[rows]])
    used = np.array([records.tasks[str(task)].io_bytes for task in records.task_ids[rows]]) / 1024
    return np.asarray((used[:, None] > kib).sum(1))


def noise_rows(signed: np.ndarray, spread: np.ndarray, level: np.ndarray) -> list[list[str]]:
    """Rows of ``NOISE_COLUMNS``: by the cache that holds the data, the last one of all programs."""
    ape, rows = 100 * np.abs(signed), []
    names = ("first level", "second level", "third level", "memory", "all")
    for place, name in enumerate(names):
        own = np.full(len(ape), True) if name == "all" else level == place
        if not own.any():
            continue
        limits = (0.0, *SPREADS, np.inf)
        parts = [own, *(own & (low <= spread) & (spread < high) for low, high in pairwise(limits))]
        mean = [f"{ape[part].mean():.1f} / {np.median(ape[part]):.1f} ({part.sum():,})" if part.any() else "-"
                for part in parts]  # fmt: skip
        rows.append([name, *mean, f"{100 * spread[own].mean():.1f} / {100 * np.median(spread[own]):.1f}"])
    return rows


NOISE_COLUMNS = (
    "data fit in", "all",
    *(f"visits differ by {name}" for name in (f"< {SPREADS[0]:.0%}", f"{SPREADS[0]:.0%} - {SPREADS[1]:.0%}", "more")),
    "one visit against the other",
)  # fmt: skip


def card_of(commit: str, model: str) -> dict[str, Any]:
    """The card that a shipped model had in ``commit``."""
    place = f"{commit}:cdmpp/predict/pretrained/{model}/card.json"
    shown = subprocess.run(["git", "show", place], capture_output=True, text=True, check=True)
    return dict(json.loads(shown.stdout))


def rows_of(
    signed: np.ndarray, classes: np.ndarray, unknown: np.ndarray, far: np.ndarray, before: dict[str, Any]
) -> list[list[str]]:
    """Rows of ``COLUMNS``, the last one of all programs; ``signed`` (n,): predicted over measured, minus one."""
    rows = []
    for name in (*sorted(set(classes.tolist())), "all"):
        own = np.full(len(classes), True) if name == "all" else classes == name
        earlier = before["metrics"] if name == "all" else before["by_op_class"].get(name)
        parts = (own & ~unknown, own & unknown, own & ~far, own & far)
        rows.append(
            [
                name,
                f"{own.sum():,}",
                f"{earlier['mape']:.1f}" if earlier else "-",
                f"{100 * np.abs(signed[own]).mean():.1f}",
                f"{100 * np.median(signed[own]):+.1f}",
                *(f"{100 * np.abs(signed[part]).mean():.1f} ({part.sum():,})" if part.any() else "-" for part in parts),
            ]
        )
    return rows


def put(rows: list[list[str]], noise: list[list[str]], before: str, model: str) -> None:
    """Write both tables into ``docs/results/accuracy.md``."""
    note = (
        f"Test programs of `{model}`, MAPE in % (programs): before (`{before}`), and now; the "
        "median signed error; of programs whose counts are known, and of those where data decide; of those whose "
        f"misses of the second-level cache take less than {_SHARE:.0%} of the measured time by the datasheet, and "
        "of the others. Where counts are known they are exact ([counts](counts.md)): that column is what this "
        "model reaches with exact counts, so that no better count could win more than the others lose."
    )
    command = f"python -m benchmarks.publish.residuals before={before} model={model} publish_it=true"
    made = {"title": TITLE, "note": note, "commands": [command], "columns": [*COLUMNS], "rows": rows}
    told = (
        "The same programs by the smallest cache that holds what they read and write, and by how far the two best "
        "visits of their label differ: MAPE / median in % (programs); last, what one visit says of the other: no model "
        "of these labels can be expected below it."
    )
    second = {"title": TITLE, "note": told, "commands": [command], "columns": [*NOISE_COLUMNS], "rows": noise}
    change(PAGE, lambda kept: [*(one for one in kept if one["title"] != TITLE), made, second])


def main(before: str, model: str, publish_it: bool) -> None:
    """Print the table, and write it into the page of accuracy where ``publish_it``."""
    predictor = cdmpp.load_model(model)
    records, split = data_of(predictor, [Path("datasets")])
    test = split.test
    signed = predict_rows(predictor, records, test) / records.latency_s[test] - 1
    unknown = records.asts.codes_or_nan()[test, _UNKNOWN] > 0
    far = memory_share(records, test) > _SHARE
    rows = rows_of(signed, records.op_classes[test], unknown, far, card_of(before, model)["test"])
    noise = noise_rows(signed, records.spread[test], caches_of(records, test))
    print("\n".join([*table(COLUMNS, rows), "", *table(NOISE_COLUMNS, noise)]))
    if publish_it:
        put(rows, noise, before, model)


if __name__ == "__main__":
    run(main, before="???", model="cpus", publish_it=False)
