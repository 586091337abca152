"""Public figures of Sailor (SOSP'25): measured layers, fits of links, and what whole plans took and held.

Repository eth-easl/sailor, commits cf2c8e3 and 16eebd4. The files lie in the folder ``sailor`` of ``--data``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cdmpp.collectives.curve import Curve

GPU = "GH-96"
GPUS_PER_NODE = 4
ITEM_BYTES = 4
"""Everything is float32: no run names another type."""
PROFILED_BLOCKS = 2
"""Blocks of the network whose layers were profiled, next to its first and its last layer."""


_PHASES = (
    "forward_compute",
    "backward_compute",
    "forward_send",
    "backward_params_all_reduce",
    "backward_embedding_all_reduce",
    "optimizer",
)
_HELD = ("total_mb", "max_allocated", "max_reserved")


@dataclass(frozen=True)
class Trained:
    """One measured plan."""

    cluster: str
    model: str
    name: str
    nodes: int
    replicas: int
    stages: int
    tensor: int
    micro_batch: int
    global_batch: int
    layers: tuple[int, ...]
    """Layers of each stage."""
    iteration_s: float
    peak_bytes: float
    again_s: float
    """The same plan on another day; NaN: it was not run again."""
    again_bytes: float
    on: tuple[tuple[str, ...], ...] = ()
    """GPU of each replica of each stage."""

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.replicas * self.micro_batch)

    @property
    def is_kept(self) -> bool:
        """True if the row is of the final test, which no published table here has."""
        return self.nodes >= 32 or (self.cluster, self.nodes) == ("mit", 6)


@dataclass(frozen=True)
class Measured:
    """One layer of one of four ranks that divide it, in seconds of one micro-batch, and in floats."""

    forward_s: float
    backward_s: float
    update_s: float
    """All parameters of the profiled network, of ``PROFILED_BLOCKS`` blocks, take so long: the source repeats it."""
    parameters: int
    output: int
    saved: int
    """For one example; as ``output``."""


def trained(folder: Path, cluster: str = "clariden") -> list[Trained]:
    """Read the plans of a cluster whose figures the source does not doubt."""

    def number(text: str) -> float:
        return float(text) if text else float("nan")

    return [
        Trained(
            row["cluster"],
            row["model"],
            row["plan"].split("/", 1)[1],
            int(row["nodes"]),
            int(row["dp"]),
            int(row["pp"]),
            int(row["tp"]),
            int(row["mbs"]),
            int(row["global_batch"]),
            tuple(map(int, row["layers_per_stage"].split())),
            float(row["iteration_s"]),
            float(row["max_mem_bytes"]),
            number(row["iteration_s_second_visit"]),
            number(row["max_mem_bytes_second_visit"]),
            tuple(
                tuple(re.sub(r"x\d+/tp\d+$", "", replica.strip()) for replica in stage.split(";"))
                for stage in row["stage_replicas"].split("|")
            ),
        )
        for row in rows(folder / "plans.csv")
        if row["cluster"] == cluster and not row["fault"]
    ]


def profiles(folder: Path, gpu: str = GPU) -> dict[tuple[str, int, int], tuple[Measured, ...]]:
    """Read the layers of the cluster's GPU: model, tensor-parallel ranks, examples -> layers in order."""
    sizes = {(row["model"], int(row["tp"]), int(row["layer"])): row for row in rows(folder / "layer_info.csv")}
    found: dict[tuple[str, int, int], list[Measured]] = {}
    timed = pq.read_table(folder / "layer_profiles.parquet", filters=[("gpu", "=", gpu)]).to_pylist()
    for row in sorted(timed, key=lambda one: one["layer"]):
        if (size := sizes.get((row["model"], row["tp"], row["layer"]))) is None:
            continue
        counts = (int(size[name]) for name in ("params_floats", "act_output_floats", "act_mem_floats"))
        layer = Measured(row["fwd_s"], row["bwd_s"], row["update_s"], *counts)
        found.setdefault((row["model"], row["tp"], row["mbs"]), []).append(layer)
    return {key: tuple(layers) for key, layers in found.items()}


def at_examples(
    layers: Mapping[tuple[str, int, int], tuple[Measured, ...]], model: str, tensor: int
) -> dict[int, tuple[Measured, ...]]:
    """Return the layers of one model divided over so many GPUs: examples -> layers."""
    return {examples: found for (name, ranks, examples), found in layers.items() if (name, ranks) == (model, tensor)}


@dataclass(frozen=True)
class Phases:
    """One run of another runtime, Aceso's, of OPT-350 on the same cluster: medians over the ranks of each stage."""

    nodes: int
    replicas: int
    stages: int
    micro_batch: int
    global_batch: int
    iteration_s: float
    seconds: Mapping[str, tuple[float, ...]]
    """Phase -> seconds in one iteration, a value a stage; NaN where a stage has none."""
    held: Mapping[str, tuple[float, ...]]
    """Bytes that driver and allocator tell -> most of them over the ranks of each stage, in a run of its own."""

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.replicas * self.micro_batch)


def phases(folder: Path) -> list[Phases]:
    """Read the runs whose ranks wrote down their phases."""
    ranks = pq.read_table(folder / "rank_phases.parquet").to_pylist()
    names = ("nodes", "dp", "pp", "mbs", "global_batch")
    found = []
    for key in sorted({tuple(rank[name] for name in names) for rank in ranks if rank["run"] == "time"}):
        own = [rank for rank in ranks if tuple(rank[name] for name in names) == key]

        def stages(
            run: str, column: str, of: Callable[[np.ndarray], float], own: list[dict[str, Any]] = own
        ) -> tuple[float, ...]:
            count = 1 + max(rank["stage"] for rank in own)
            values = [[r[column] for r in own if (r["run"], r["stage"]) == (run, stage)] for stage in range(count)]
            return tuple(of(np.array([one for one in each if one is not None] or [np.nan])) for each in values)

        timed = {name: tuple(1e-3 * one for one in stages("time", name, np.median)) for name in _PHASES}
        held = {name: tuple(2.0**20 * one for one in stages("memory", name, np.max)) for name in _HELD}
        found.append(Phases(*key, stages("time", "iteration_ms", np.median)[0] * 1e-3, timed, held))
    return found


def links(folder: Path) -> Mapping[str, Curve]:
    """Read the authors' fits as curves: GB/s of a message as a polynomial of log2 of its megabytes.

    ``inside`` is between two GPUs of a node, ``between`` between one GPU of a node and one of another node.
    """
    fits = {
        (row["table"], row["gpu_a"], row["count_a"], row["gpu_b"], row["count_b"]): json.loads(row["poly_coeffs"])
        for row in rows(folder / "network_fits.csv")
    }
    near, far = ("intra", GPU, "2", GPU, "2"), ("multizone_bandwidths", GPU, "1", GPU, "1")
    return {"inside": curve(fits[near]), "between": curve(fits[far])}


@dataclass(frozen=True)
class UnlikeLinks:
    """Links of the cluster `mit`, whose nodes have unlike GPUs."""

    between: Mapping[str, Curve]
    """GPU -> messages of nodes that have it, through the adapter that all their GPUs share."""
    inside: Mapping[tuple[str, int], Curve]
    """GPU and number of GPUs -> messages inside of a node."""


def unlike_links(folder: Path, gpus: Sequence[str]) -> UnlikeLinks:
    """Read the fits of nodes with equal GPUs.

    A message between unlike nodes goes through both adapters, at the rate of the slower one. That is what the fits of
    unlike nodes say too, but for 1 and 8 GPUs between Titan-RTX and RTX-2080: these two repeat, digit by digit, a fit
    of other nodes at 0.115 GB/s, and those of 2 and 4 GPUs are at 2.86.
    """
    between, inside = dict[str, Curve](), dict[tuple[str, int], Curve]()
    for row in rows(folder / "network_fits.csv"):
        gpu, count = row["gpu_a"], row["count_a"]
        if gpu != row["gpu_b"] or count != row["count_b"] or gpu not in gpus:
            continue
        fitted = curve(json.loads(row["poly_coeffs"]))
        if row["table"] == "intra":
            inside[gpu, int(count)] = fitted
        elif row["table"] == "multizone_bandwidths" and count == "4":
            between[gpu] = fitted
    return UnlikeLinks(between, inside)


def curve(fit: Sequence[float]) -> Curve:
    """Return what messages take by a fit, from 256 KiB on, where the parabola turns, to 1 GiB."""
    sizes = 2.0 ** np.arange(18, 30.5, 0.5)
    return Curve(GPU, None, "nccl", "send_recv", 2, 1, sizes, sizes / 1e9 / np.polyval(fit, np.log2(sizes / 1e6)))


def rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
