"""Measured tables of public sources, read into curves whose sizes count as ours do.

The tables are those of NVIDIA's AIConfigurator (Apache-2.0) and of Microsoft's Vidur (MIT), each merged into one
Parquet file. None of their rows ship with the package.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.collectives.curve import Curve
from cdmpp.errors import DataError
from cdmpp.platform.files import read_table

_KINDS = {"alltoall": "all_to_all"}
_LINKS: dict[str, str | None] = {
    "a100_sxm": "nvlink3", "h100_sxm": "nvlink4", "h200_sxm": "nvlink4", "b300_sxm": "nvlink5", "gb300": "nvlink5",
    "l40s": "pcie4", "rtx_pro_6000_server": "pcie5", "b60": "pcie5",
    "a100_dgx": "nvlink3", "h100_dgx": "nvlink4", "a100_pairwise_nvlink": "nvlink3-bridge",
    "h100_pairwise_nvlink": "nvlink4-bridge", "a40_pairwise_nvlink": "nvlink3-bridge-a40",
}  # fmt: skip
"""System -> the link of its cards. Between nodes no source tells it."""


def read_aiconfigurator(path: Path, dtype: str = "half") -> tuple[Curve, ...]:
    """Read curves of ``collectives.parquet``: library, ``dtype`` and median of repeats as there.

    Its sizes follow nccl-tests, as ours do: an all-gather counts the gathered result, a reduce-scatter its input.
    Raises ``DataError`` for a missing file, column or system.
    """
    wanted = ("system", "library", "op", "dtype", "gpus", "message_bytes", "latency_ms")
    cells: dict[tuple, list[tuple[int, float]]] = defaultdict(list)
    for row in _rows(path, wanted):
        if row["dtype"] == dtype:
            key = (row["system"], row["library"].lower(), _KINDS.get(row["op"], row["op"]), row["gpus"], 1)
            cells[key].append((row["message_bytes"], row["latency_ms"]))
    return _curves(cells, path)


def read_custom_all_reduce(path: Path) -> tuple[Curve, ...]:
    """Read curves of ``custom_allreduce.parquet``, system ``a100_sxm/vllm_graph`` and so on.

    Many tables there are copies of one another under another name; of equal ones the first in order of name is kept.
    Versions of one kernel are repeats.
    """
    wanted = (
        "system",
        "framework",
        "framework_version",
        "kernel",
        "backend",
        "dtype",
        "gpus",
        "message_bytes",
        "latency_ms",
    )
    tables: dict[tuple, list[tuple[int, float]]] = defaultdict(list)
    for row in _rows(path, wanted):
        name = "trtllm" if row["kernel"] == "TRTLLM" else row["backend"]
        tables[row["system"], row["gpus"], name, row["framework"], row["framework_version"]].append(
            (row["message_bytes"], row["latency_ms"])
        )
    seen: set[tuple] = set()
    cells: dict[tuple, list[tuple[int, float]]] = defaultdict(list)
    for (system, gpus, name, *_), points in sorted(tables.items()):
        print_of = hashlib.sha256(repr(sorted(points)).encode()).hexdigest()
        if (system, gpus, print_of) not in seen:
            seen.add((system, gpus, print_of))
            cells[f"{system}/{name}", "custom", "all_reduce", gpus, 1] += points
    return _curves(cells, path)


def read_vidur(path: Path) -> tuple[Curve, ...]:
    """Read curves of Vidur's ``collectives.parquet`` (NCCL, fp16): medians, workers spread evenly over nodes."""
    wanted = ("host", "op", "workers", "workers_per_node", "message_bytes", "median_ms")
    cells: dict[tuple, list[tuple[int, float]]] = defaultdict(list)
    for row in _rows(path, wanted):
        key = (row["host"], "nccl", row["op"], row["workers"], row["workers"] // row["workers_per_node"])
        cells[key].append((row["message_bytes"], row["median_ms"]))
    return _curves(cells, path)


def _rows(path: Path, columns: Iterable[str]) -> list[dict[str, Any]]:
    table = read_table(path)
    if missing := sorted(set(columns) - set(table.column_names)):
        raise DataError(
            f"{path} lacks the columns {', '.join(missing)}: it is not the table of collectives expected here"
        )
    return table.to_pylist()


def _curves(cells: dict[tuple, list[tuple[int, float]]], path: Path) -> tuple[Curve, ...]:
    """A curve a cell: the median of what was measured at each size."""
    if not cells:
        raise DataError(f"{path} holds no row of the kind asked for")
    found = []
    for (system, backend, kind, ranks, nodes), points in sorted(cells.items()):
        card = system.partition("/")[0]
        if card not in _LINKS:
            raise DataError(f"{path}: system {card!r} is unknown; known: {', '.join(_LINKS)}")
        by_size: dict[int, list[float]] = defaultdict(list)
        for size, latency_ms in points:
            by_size[size].append(1e-3 * latency_ms)
        sizes = np.array(sorted(by_size))
        medians = np.array([np.median(by_size[size]) for size in sizes])
        link = _LINKS[card] if nodes == 1 else None
        found.append(Curve(system, link, backend, kind, ranks, nodes, sizes, medians))
    return tuple(found)
