"""Public throughputs: sharded language models up to 128 GPUs, and parameter servers of one machine up to 8."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import Outcome, by_cdmpp, by_extrap, by_forest, by_nothing
from benchmarks.expressions.rows import COLUMNS, COMMANDS, by_row, summary
from benchmarks.expressions.split import Split

_RECOMPUTED = 4 / 3
"""Work of a step whose activations are computed again, as a part of that of another step."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the folders ``mpt-fsdp`` and ``tf-parameter-server`` of ``data``."""
    return [_sharded(data), _servers(data)]


def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def sharded(data: Path) -> Split:
    """From at most 16 GPUs to 64 and more."""
    read = _columns(data / "mpt-fsdp" / "throughput.csv")
    numbers = {name: read[name].astype(float) for name in ("gpus", "micro_batch", "seq_len", "num_params", "step_s")}
    columns = {**read, **numbers, "chunks": read["grad_accum"].astype(float)}
    columns["recomputed"] = np.where(read["act_checkpoint"] == "True", _RECOMPUTED, 1.0)
    columns["samples"] = columns["micro_batch"] * columns["chunks"]
    columns["bits"] = np.where(read["precision"] == "amp_fp8", "8 bits", "16 bits")
    factors = ("gpus", "micro_batch", "chunks", "seq_len", "num_params", "recomputed")
    known, asked = columns["gpus"] <= 16, columns["gpus"] >= 64
    return Split("sharded", factors, columns, numbers["step_s"], known, asked, ("gpu", "bits"))


def _sharded(data: Path) -> dict[str, Any]:
    split = sharded(data)
    work = split.columns["samples"] * split.columns["seq_len"] * split.columns["num_params"]
    a_unit = Split(split.name, split.factors, split.columns, split.times_s / work, split.known, split.asked)
    alike = ("gpu", "precision", "model", "seq_len", "act_checkpoint", "micro_batch")
    found = {
        "nothing": [by_nothing(a_unit, alike, "gpus")], "extrap": by_extrap([split], ("gpus", "samples", "num_params")),
        "forest": [by_forest(split)], "cdmpp": [by_cdmpp(split)],
    }  # fmt: skip
    note = (
        "FSDP throughput of MPT models (github.com/mosaicml/llm-foundry at 8c8dd48, Apache-2.0), A100 and H100, 125 M "
        f"to 70 B parameters. Fitted on {int(split.known.sum())} rows of at most 16 GPUs, asked for "
        f"{int(split.asked.sum())} of 64 and 128. Groups: kinds of GPU with their bits a number. No model: the time "
        "for each sample, token and parameter of the most alike rows at the most GPUs seen. Only 11 of the fitted rows "
        "are of 16 GPUs, the others of 8, so no fold tells how the time grows with GPUs. That work grows with "
        "parameters times what is computed again, that attention grows with their power 2/3, and the groups were "
        "chosen by folds of the fitted rows, after errors of single asked rows had been seen. Worst and median are of "
        "the one table."
    )
    return {"title": "Sharded models: 16 GPUs to 64 and 128", "note": note, "commands": COMMANDS,
            "columns": list(COLUMNS), "rows": summary(by_row(found))}  # fmt: skip


def servers(data: Path) -> Split:
    """From 1, 2 and 4 GPUs of one machine to 8."""
    read = _columns(data / "tf-parameter-server" / "throughput.csv")
    gpus, one_machine = read["gpus"].astype(float), read["instances"] == "1"
    names = ("platform", "model", "data", "batch_per_gpu")
    job = np.array(["/".join(one) for one in zip(*(read[name] for name in names), strict=True)])
    known = one_machine & (gpus < 8)
    asked = one_machine & (gpus == 8) & np.isin(job, job[known & (gpus == 4)])
    known &= np.isin(job, job[asked])
    columns = {**read, "gpus": gpus, "job": job}
    return Split("servers", ("gpus",), columns, read["step_s"].astype(float), known, asked, ("job",))


def _servers(data: Path) -> dict[str, Any]:
    split = servers(data)
    each = [
        Split(job, ("gpus",), split.columns, split.times_s, split.known & own, split.asked & own)
        for job in np.unique(split.columns["job"][split.asked])
        for own in [split.columns["job"] == job]
    ]
    extrap, gpus = by_extrap(each), split.columns["gpus"]
    fewer = [by_nothing(replace(split, known=split.known & (gpus <= most)), ("job",), "gpus").mean for most in (2, 1)]
    found = {
        "nothing": [by_nothing(split, ("job",), "gpus")],
        "extrap": None if extrap is None else [Outcome(np.concatenate([one.errors for one in extrap]))],
        "forest": [by_forest(split)], "cdmpp": [by_cdmpp(split)],
        "cdmpp, fitted on 2 and 4 GPUs only": [by_cdmpp(replace(split, known=split.known & (gpus > 1)))],
    }  # fmt: skip
    shared, grown = _oracles(split)
    note = (
        "TensorFlow's benchmarks of May 2017 (docs_src/performance/benchmarks.md at 5984ffe, Apache-2.0): "
        f"{int(split.asked.sum())} jobs on 8 GPUs of one machine, by those on 1, 2 and 4. A group is a job: platform, "
        "network, data and batch; groups borrow from each other. No model: the step on 4 GPUs again; that on "
        f"2 GPUs is off by {fewer[0]:.1f} %, that on 1 by {fewer[1]:.1f} %. Rows of 4 and 8 machines "
        "are not in the table. What bounds every method: the one factor from 4 GPUs to 8, the same for all jobs, that "
        f"fits the asked rows themselves best leaves {shared:.1f} %, and so does the best line in how each job grew "
        f"from 2 GPUs to 4 ({grown:.1f} %): what a job does up to 4 GPUs hardly tells what it does on 8, so 2.5 % "
        "cannot be asked for."
    )
    return {"title": "Parameter servers: 4 GPUs to 8", "note": note, "commands": COMMANDS,
            "columns": list(COLUMNS), "rows": summary(by_row(found))}  # fmt: skip


def _oracles(split: Split) -> tuple[float, float]:
    """Errors in per cent of what is fitted to the asked rows themselves: one factor, and a line in earlier growth."""
    job, gpus, times_s = split.columns["job"], split.columns["gpus"], split.times_s

    def at(count: int) -> np.ndarray:
        return np.array([times_s[(job == one) & (gpus == count)].mean() for one in job[split.asked]])

    before, after = at(4) / at(2), times_s[split.asked] / at(4)
    factors = np.linspace(0.9, 1.3, 401)
    shared = np.abs(factors[:, None] / after - 1).mean(axis=1).min()
    slopes = np.linspace(-1, 3, 161)
    lines = factors[:, None, None] + slopes[:, None] * (before - 1)
    return 100 * float(shared), 100 * float(np.abs(lines / after - 1).mean(axis=2).min())
