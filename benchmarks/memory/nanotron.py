"""Memory of a GPU in a sweep of nanotron on up to 512 H100 (``nanotron-sweep/sweep.parquet``), and which jobs fit.

The sweep's script (``scaling_benchmarks.py``) says vocabulary, precision and the mode of tensor parallelism; whether
products keep their gathered inputs it does not say for each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.memory.scored import HEADS, cells
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.framework_memory import FrameworkJob, framework_parts
from cdmpp.plans.frameworks import NANOTRON
from cdmpp.plans.transformer_rank import TransformerShape

GIB = 2**30
DEVICE_BYTES = 80 * GIB
_CRASH_GB = 40
"""Failures that hold less are crashes: stages of few layers, time-outs."""
_BYTES = """Models of 1 to 80 billion parameters on 8 to 512 H100, clean rows; what the sweep prints as GB is taken as
GiB of the first rank, since so it agrees where nothing is unknown (no pipeline, one rank of tensor parallelism). No
number is fitted. Products of tensor parallelism keep their gathered inputs, or gather them again in the backward pass:
runs differ in that, with nodes and stages, and no column says which; nearer of both knows it, one bit of each row.
Textbook: 20 or 8 + 12/dp bytes a parameter, 34 s b h for each block in flight."""
_FITS = """A job fits if its heaviest rank does, with the context of CUDA and communicators. The sweep does not tell
jobs that had too little memory from those that crashed; failures that are said to hold below 40 GB are left out in the
second rows."""
Row = Mapping[str, Any]


def job_of(row: Row, keeps_gathered: bool) -> FrameworkJob:
    """Return the job of a row."""
    shape = TransformerShape(
        row["layers"], row["hidden"], row["heads"], row["ffn"], row["vocab"], row["seq_len"], is_gated=True,
        has_bias=False, is_tied=row["tied_embeddings"],
    )  # fmt: skip
    shards = row["zero_stage"] > 0
    framework = replace(NANOTRON, shards_state=shards, keeps_gathered=keeps_gathered)
    ranks = row["dp"] if shards else 1
    return FrameworkJob(shape, framework, row["mbs"], row["grad_accum"], row["tp"], row["pp"], 1, ranks)


def peaks(row: Row, keeps_gathered: bool) -> list[int]:
    """Return the bytes that PyTorch allocates at most on each rank of the pipeline."""
    return [one.peak_bytes for one in framework_parts(job_of(row, keeps_gathered))]


def tables(data: Path) -> list[dict[str, Any]]:
    """Return the table of bytes and that of jobs that fit."""
    every = pq.ParquetFile(data / "nanotron-sweep" / "sweep.parquet").read().to_pylist()
    both = [[peaks(row, keeps) for keeps in (True, False)] for row in every]
    return [_bytes(every, both), _fits(every, both)]


def _bytes(every: Sequence[Row], both: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    pairs = [
        (row, one) for row, one in zip(every, both, strict=True)
        if row["status"] == "ok" and row["consistent"] and not row["also_failed"]
    ]  # fmt: skip
    measured = np.array([GIB * row["gpu_mem_gb"] for row, _ in pairs])
    first = np.array([[own[0] for own in one] for _, one in pairs], float)
    nearer = first[np.arange(len(pairs)), np.abs(first - measured[:, None]).argmin(axis=1)]
    textbook = np.array([_textbook(row) for row, _ in pairs])
    tests = {
        "all": lambda row: True,
        "no pipeline": lambda row: row["pp"] == 1,
        "pipeline": lambda row: row["pp"] > 1,
        "no tensor parallelism": lambda row: row["tp"] == 1,
        "2 or 4 ranks of it": lambda row: row["tp"] in (2, 4),
        "8 ranks or more": lambda row: row["tp"] >= 8,
    }
    which = [(name, np.array([test(row) for row, _ in pairs])) for name, test in tests.items()]
    ways = (
        ("kept", first[:, 0]), ("gathered again", first[:, 1]), ("nearer of both", nearer), ("textbook", textbook),
    )  # fmt: skip
    return {
        "title": "nanotron, bytes of the first rank",
        "note": " ".join(_BYTES.split()),
        "commands": ["python -m benchmarks.memory nanotron --data DATA --publish"],
        "columns": ["rows judged", "inputs of products", *HEADS],
        "rows": [[name, way, *cells(values[own], measured[own])] for name, own in which for way, values in ways],
    }


def _textbook(row: Row) -> float:
    each = 4 * row["hidden"] ** 2 + 3 * row["hidden"] * row["ffn"]
    blocks = row["layers"] / row["pp"]
    parameters = (blocks * each + row["vocab"] * row["hidden"]) / row["tp"]
    state = 8 + 12 / (row["dp"] if row["zero_stage"] else 1)
    alive = min(row["grad_accum"], row["pp"])
    return parameters * state + 34 * row["seq_len"] * row["mbs"] * row["hidden"] / row["tp"] * blocks * alive


def _fits(every: Sequence[Row], both: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    good = np.array([row["status"] == "ok" for row in every])
    outside = np.array([CONTEXT + communicator_bytes(_degrees(row)) for row in every])
    lines = []
    for way, place in (("kept", 0), ("gathered again", 1)):
        peak = np.array([max(one[place]) for one in both]) + outside
        crash = ~good & (peak < GIB * _CRASH_GB)
        for name, own in (("all", np.ones(len(every), bool)), ("without failures below 40 GB", ~crash)):
            says = peak[own] <= DEVICE_BYTES
            right, refused = says == good[own], ~says & good[own]
            let = says & ~good[own]
            shares = (
                good[own].mean(), right.mean(), refused.sum() / good[own].sum(), let.sum() / (~good[own]).sum(),
            )  # fmt: skip
            lines.append([name, way, str(int(own.sum())), *(f"{100 * share:.1f}" for share in shares)])
    return {
        "title": "nanotron, does it fit into 80 GiB",
        "note": " ".join(_FITS.split()),
        "commands": ["python -m benchmarks.memory nanotron --data DATA --publish"],
        "columns": [
            *("jobs", "inputs of products", "jobs judged", "that ran, %", "right, %"),
            *("refused of those that ran, %", "let through of the others, %"),
        ],
        "rows": lines,
    }  # fmt: skip


def _degrees(row: Row) -> list[str]:
    return [name for name in ("dp", "tp", "pp") if row[name] > 1]
