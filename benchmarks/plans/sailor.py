"""Sailor's public plans: seconds and bytes from measured layers, beside baselines and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.sailor_data import GPUS_PER_NODE, ITEM_BYTES, Measured, Trained, profiles, trained
from benchmarks.plans.scores import cell, least_absolute, left_out

_COMMAND = "python -m benchmarks.plans sailor --data FOLDER --publish"
_SOURCE = (
    "Megatron-DeepSpeed in float32 on nodes of four GH200, tensor parallel inside each node, pipeline and data "
    "parallel between them; 18 plans without a doubt, 11 of OPT-350 and 7 of GPT-Neo-2.7."
)
OTHERS = "the other 17 plans"
_RATE = 22.93e9
"""Highest bytes a second between two GPUs of unlike nodes that the authors measured."""
_COLUMNS = ["predicted by", "fitted on", "all", "OPT-350", "GPT-Neo-2.7"]


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``sailor`` of ``data``."""
    folder = data / "sailor"
    plans = [one for one in trained(folder) if not one.is_kept]
    measured_s = np.array([one.iteration_s for one in plans])
    measured_bytes = np.array([one.peak_bytes for one in plans])
    layers = profiles(folder)
    slots = np.array([_slots_s(one, layers[one.model, one.tensor, one.micro_batch]) for one in plans])
    ways_s = [
        ("seconds of a GPU and example, median (trivial)", OTHERS, _per_gpu(plans, measured_s)),
        ("layers, slots of the slowest stage, ring (notes: 9.7 (6.7))", "nothing", slots),
        ("the same and one factor", OTHERS, _one_factor(slots, measured_s)),
    ]
    ways_bytes = [("geometric mean (trivial)", OTHERS, _alike(measured_bytes))]
    return [
        _scores("Sailor: seconds of an iteration", plans, measured_s, ways_s),
        _scores("Sailor: bytes of the GPU that holds most", plans, measured_bytes, ways_bytes),
    ]


def _scores(
    title: str, plans: Sequence[Trained], measured: np.ndarray, ways: Sequence[tuple[str, str, np.ndarray]]
) -> dict[str, Any]:
    models = np.array([one.model for one in plans])
    masks = [np.full(len(plans), True), *(models == model for model in _COLUMNS[3:])]
    return {
        "title": title,
        "note": f"Mean (median) of absolute errors in per cent. {_SOURCE}",
        "commands": [_COMMAND],
        "columns": _COLUMNS,
        "rows": [
            [way, fitted, *(cell(predicted[mask], measured[mask]) for mask in masks)] for way, fitted, predicted in ways
        ],
    }


def _per_gpu(plans: Sequence[Trained], measured_s: np.ndarray) -> np.ndarray:
    """Predict that an example takes a GPU as long as in the median of the other plans."""
    share = np.array([one.global_batch / (one.nodes * GPUS_PER_NODE) for one in plans])
    return left_out(range(len(plans)), lambda seen, i: float(np.median((measured_s / share)[seen]) * share[i]))


def _slots_s(one: Trained, layers: Sequence[Measured]) -> float:
    """Count as many slots as micro-batches and stages but one, each as long as that of the slowest stage."""
    ends = np.cumsum(one.layers)
    stages = [layers[end - count : end] for end, count in zip(ends, one.layers, strict=True)]
    slot_s = max(sum(layer.forward_s + layer.backward_s for layer in stage) for stage in stages)
    reduced = max(ITEM_BYTES * sum(layer.parameters for layer in stage) for stage in stages)
    update_s = max(sum(layer.update_s for layer in stage) for stage in stages)
    ring_s = 2 * (one.replicas - 1) / one.replicas * reduced / _RATE
    return (one.micro_batches + one.stages - 1) * slot_s + ring_s + update_s


def _one_factor(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    columns, nothing = predicted[:, None], np.zeros(len(measured))
    return left_out(
        range(len(measured)),
        lambda seen, i: float(predicted[i] * least_absolute(columns[seen], nothing[seen], measured[seen])[0]),
    )


def _alike(measured: np.ndarray) -> np.ndarray:
    return left_out(range(len(measured)), lambda seen, i: float(np.exp(np.log(measured[seen]).mean())))
