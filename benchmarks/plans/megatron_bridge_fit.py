"""Factors of the parts of Megatron-Bridge's jobs: of 0 or more, by relative errors, and drawn to 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.plans import megatron_bridge_job as job
from benchmarks.plans.large_scores import Floats, Mask
from benchmarks.plans.megatron_bridge_data import MODELS, Row
from benchmarks.plans.part_weights import part_weights

_GRAPHS_FROM = "26.06"
"""First release whose recipes of experts record whole iterations as CUDA graphs, and fuse products of experts."""
_HOSTS = ("H100", "B200")
"""Systems whose recipes of experts record no CUDA graphs, or only parts of a block."""
_COLUMNS = (
    "products, H100", "products, Blackwell", "products of experts", "products of experts, from 26.06", "attention",
    "other kernels", "bubble", "all-to-all in a node", "all-to-all between nodes", "tensor, context, messages",
    "gradients and update", "seconds of a block's host",
)  # fmt: skip
_PRIOR = np.array([1.0] * (len(_COLUMNS) - 1) + [0.0])


def parts_of(rows: Sequence[Row]) -> Floats:
    """Return (rows, parts) seconds; the last column has thousands of passes of blocks, which only a factor counts."""
    found = np.zeros((len(rows), len(_COLUMNS)))
    for place, row in enumerate(rows):
        plan, model, own = row.plan, MODELS[row.plan.model], job.parts(row.plan)
        found[place, int(plan.system != "H100")] = own[job.PRODUCTS]
        found[place, 2 + int(row.release >= _GRAPHS_FROM)] = own[job.EXPERTS]
        found[place, 4], found[place, 5], found[place, 6] = own[job.ATTENTION], own[job.OTHER], own[job.BUBBLE]
        found[place, 7 + int(job.is_far(plan))] = own[job.TOKENS]
        found[place, 9], found[place, 10] = own[job.INSIDE], own[job.REPLICAS] + own[job.UPDATE]
        if not model.is_dense and plan.system in _HOSTS:
            found[place, 11] = 1e-3 * model.layers / plan.pp * plan.micro_batches
    return found


def nominal_s(parts: Floats) -> Floats:
    """Return the seconds of steps before any fit."""
    return parts @ _PRIOR


def fitted_s(parts: Floats, measured_s: Floats, releases: np.ndarray, seen: Mask) -> Floats:
    """Return the seconds of all rows by factors of those that are seen."""
    return parts @ part_weights(parts[seen], measured_s[seen], _PRIOR, releases[seen])


def text_of(parts: Floats, measured_s: Floats, releases: np.ndarray) -> str:
    """Write the factors of all rows for a reader, those of parts that no row has left out."""
    found = part_weights(parts, measured_s, _PRIOR, releases)
    used = parts.any(axis=0)
    return ", ".join(f"{name} {one:.2g}" for name, one, own in zip(_COLUMNS, found, used, strict=True) if own)
