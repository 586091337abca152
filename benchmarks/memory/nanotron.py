"""Memory of a GPU in a sweep of nanotron on up to 512 H100 (``nanotron-sweep/sweep.parquet``), and which jobs fit.

The sweep's script (``scaling_benchmarks.py``) says vocabulary, precision and the mode of tensor parallelism, and that
``torch.cuda.max_memory_reserved`` is the only peak that its log keeps over the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.memory.scored import HEADS, cells
from cdmpp.errors import CdmppError
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.framework_memory import FrameworkJob, framework_parts
from cdmpp.plans.frameworks import NANOTRON
from cdmpp.plans.reserved_memory import reserved_bytes
from cdmpp.plans.transformer_shape import TransformerShape

GIB = 2**30
DEVICE_BYTES = int(79.1 * GIB)
"""What PyTorch says an H100 of 80 GB has."""
_CRASH_GB = 40
"""Failures that hold less are crashes: stages of few layers, time-outs."""
_NEARLY = 2 / 3
"""Tensors of less than this of the device fit without a look at the gaps between them."""
_BYTES = """Models of 1 to 80 billion parameters on 8 to 512 H100, clean rows: GiB that PyTorch's allocator reserves
on the first rank. That it is this, and not what tensors hold, is read from nanotron's source: the sweep's log
begins its peak of tensors anew after each backward pass. No number is fitted to bytes; sizes, buffers and the order
of passes are those of nanotron's source (branch of December 2024), blocks those of PyTorch's allocator. What a
collective used is free for other tensors once the device got there. Without a pipeline the host may be ahead by a
queue of launches; with one, the published code waits for each message. Runs differ in both, by versions and
settings that no column names: nearer of both knows it, one bit of each row. Tensors alone: their peak, without
gaps. Textbook: 20 or 8 + 12/dp bytes a parameter, 34 s b h for each block in flight. Two things were found by
looking at errors of these rows: that rows without tensor parallelism agree with what is reserved, and that the rest
falls into two kinds; 256 operators of a queue stand for its 1,024 launches. Queues of
256, 512 and 1,024 were compared on these rows before 1,024 was taken, so that figures of a host that is ahead, and of
published code without a pipeline, are not those of rows unseen."""
_FITS = """A job fits if the allocator of its heaviest rank does, with the context of CUDA and communicators, into
79.1 GiB. The sweep does not tell jobs that had too little memory from those that crashed; failures that are said to
hold below 40 GB are left out in the second rows."""
Row = Mapping[str, Any]


def job_of(row: Row, host_ahead: int | None = None) -> FrameworkJob:
    """Return the job of a row; ``host_ahead``: operators by which the host is ahead; None: as nanotron's source has it.

    With a number the host waits for no message of a pipeline.
    """
    shape = TransformerShape(
        row["layers"], row["hidden"], row["heads"], row["ffn"], row["vocab"], row["seq_len"], is_gated=True,
        has_bias=False, is_tied=row["tied_embeddings"],
    )  # fmt: skip
    shards = row["zero_stage"] > 0
    framework = replace(NANOTRON, shards_state=shards)
    if host_ahead is not None:
        framework = replace(framework, host_ahead=host_ahead, waits_for_messages=False)
    ranks = row["dp"] if shards else 1
    return FrameworkJob(
        shape, framework, row["mbs"], row["grad_accum"], row["tp"], row["pp"], 1, ranks, replicas=row["dp"]
    )  # fmt: skip


def peaks(row: Row) -> list[int]:
    """Return the bytes of tensors at most on each rank of the pipeline."""
    return [one.peak_bytes for one in framework_parts(job_of(row))]


def reserved(row: Row, host_ahead: int | None = None) -> int:
    """Return the bytes that the allocator of the first rank reserves: all that it has, where more are wanted."""
    outside = CONTEXT + communicator_bytes(_degrees(row))
    try:
        return reserved_bytes(job_of(row, host_ahead), 0, DEVICE_BYTES - outside)
    except CdmppError:
        return DEVICE_BYTES - outside


def tables(data: Path) -> list[dict[str, Any]]:
    """Return the table of bytes and that of jobs that fit."""
    every = pq.ParquetFile(data / "nanotron-sweep" / "sweep.parquet").read().to_pylist()
    return [_bytes(every), _fits(every)]


def _bytes(every: Sequence[Row]) -> dict[str, Any]:
    rows = [row for row in every if row["status"] == "ok" and row["consistent"] and not row["also_failed"]]
    measured = np.array([GIB * row["gpu_mem_gb"] for row in rows])
    waits, ahead = (np.array([reserved(row, many) for row in rows], float) for many in (0, NANOTRON.host_ahead))
    published = np.where([row["pp"] == 1 for row in rows], ahead, waits)
    is_near = np.abs(waits - measured) < np.abs(ahead - measured)
    ways = (
        ("as published", published), ("host waits", waits), ("host is ahead", ahead),
        ("nearer of both", np.where(is_near, waits, ahead)),
        ("tensors alone", np.array([peaks(row)[0] for row in rows], float)),
        ("textbook", np.array([_textbook(row) for row in rows])),
    )  # fmt: skip
    tests = {
        "all": lambda row: True,
        "no pipeline": lambda row: row["pp"] == 1,
        "pipeline": lambda row: row["pp"] > 1,
        "no tensor parallelism": lambda row: row["tp"] == 1,
        "2 or 4 ranks of it": lambda row: row["tp"] in (2, 4),
        "8 ranks or more": lambda row: row["tp"] >= 8,
    }
    which = [(name, np.array([test(row) for row in rows])) for name, test in tests.items()]
    return {
        "title": "nanotron, bytes of the first rank",
        "note": " ".join(_BYTES.split()),
        "commands": ["python -m benchmarks.memory nanotron --data DATA --publish"],
        "columns": ["rows judged", "by", *HEADS],
        "rows": [[name, way, *cells(values[own], measured[own])] for name, own in which for way, values in ways],
    }


def _textbook(row: Row) -> float:
    each = 4 * row["hidden"] ** 2 + 3 * row["hidden"] * row["ffn"]
    blocks = row["layers"] / row["pp"]
    parameters = (blocks * each + row["vocab"] * row["hidden"]) / row["tp"]
    state = 8 + 12 / (row["dp"] if row["zero_stage"] else 1)
    alive = min(row["grad_accum"], row["pp"])
    return parameters * state + 34 * row["seq_len"] * row["mbs"] * row["hidden"] / row["tp"] * blocks * alive


def fits(row: Row, held: Sequence[int]) -> bool:
    """Return whether a job fits; ``held``: bytes of tensors of its ranks."""
    left = DEVICE_BYTES - CONTEXT - communicator_bytes(_degrees(row))
    most = max(held)
    if not _NEARLY * left < most <= left:
        return most <= left
    try:
        reserved_bytes(job_of(row), held.index(most), left)
    except CdmppError:
        return False
    return True


def _fits(every: Sequence[Row]) -> dict[str, Any]:
    good = np.array([row["status"] == "ok" for row in every])
    held = [peaks(row) for row in every]
    peak = np.array(
        [max(one) + CONTEXT + communicator_bytes(_degrees(row)) for row, one in zip(every, held, strict=True)]
    )
    ways = {
        "tensors and gaps": np.array([fits(row, one) for row, one in zip(every, held, strict=True)]),
        "tensors alone": peak <= DEVICE_BYTES,
    }
    crash, lines = ~good & (peak < GIB * _CRASH_GB), list[list[str]]()
    for way, found in ways.items():
        for name, own in (("all", np.ones(len(every), bool)), ("without failures below 40 GB", ~crash)):
            says = found[own]
            right, refused, let = says == good[own], ~says & good[own], says & ~good[own]
            shares = (
                good[own].mean(), right.mean(), refused.sum() / good[own].sum(), let.sum() / (~good[own]).sum(),
            )  # fmt: skip
            lines.append([name, way, str(int(own.sum())), *(f"{100 * share:.1f}" for share in shares)])
    return {
        "title": "nanotron, does it fit into 80 GB",
        "note": " ".join(_FITS.split()),
        "commands": ["python -m benchmarks.memory nanotron --data DATA --publish"],
        "columns": [
            *("jobs", "by", "jobs judged", "that ran, %", "right, %"),
            *("refused of those that ran, %", "let through of the others, %"),
        ],
        "rows": lines,
    }  # fmt: skip


def _degrees(row: Row) -> list[str]:
    return [name for name in ("dp", "tp", "pp") if row[name] > 1]
