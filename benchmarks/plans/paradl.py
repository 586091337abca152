"""ParaDL's public figures: the oracle beside what was measured and what the authors' tool printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.paradl_data import INSIDE, between, ring, trained, weights
from cdmpp.collectives.algorithms import ring as ring_s
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.calibration import Calibration, Run, calibrate
from cdmpp.plans.plan import plan_on

_TESTS = {"vgg": (16, 32, 64, 512), "resnet": (16, 1024)}
"""Network -> numbers of GPUs that no fit sees; ResNet-50 waits for its input at 32 to 256."""
_TITLES = {"vgg": "VGG-16", "resnet": "ResNet-50"}
_BATCHES = {"vgg": 32, "resnet": 64}
"""Examples of each GPU."""
_LAYERS = {"vgg": "vgg", "resnet": "resnet50"}
_COMMAND = "python -m benchmarks.plans paradl --data FOLDER --publish"


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the oracle on the folder ``paradl`` of ``data``."""
    return [_data_parallel(data / "paradl")]


def _data_parallel(folder: Path) -> dict[str, Any]:
    measured = {
        model: {one.gpus: one.iteration_s for one in trained(folder) if (one.model, one.strategy) == (model, "data")}
        for model in _TESTS
    }
    body = []
    for model, counts in _TESTS.items():
        own, reduced = measured[model], 4 * weights(folder, _LAYERS[model])
        for way, predicted in _ways(model, own, reduced).items():
            found = [1 - abs(predicted(gpus) - own[gpus]) / own[gpus] for gpus in counts]
            cells = [f"{gpus}: {predicted(gpus):.3f} ({own[gpus]:.3f})" for gpus in counts]
            body.append([_TITLES[model], way, ", ".join(cells), f"{np.mean(found):.3f}", f"{min(found):.3f}"])
    return {
        "title": "ParaDL: data parallel training",
        "note": (
            "Seconds an iteration, predicted (measured), ChainerMN on V100: all gradients are reduced at once "
            "after the backward pass, around one NCCL ring. Computing is the 1-GPU run; the share of the link's "
            "bandwidth is fitted to the 8-GPU run alone; start-ups are those of the authors' link table. Accuracy is "
            "1 - |predicted - measured| / measured; the authors' best case is 0.976."
        ),
        "commands": [_COMMAND],
        "columns": ["network", "by", "GPUs: seconds", "mean accuracy", "worst"],
        "rows": body,
    }


def _ways(model: str, own: dict[int, float], reduced: int) -> dict[str, Callable[[int], float]]:
    """Name -> prediction of the seconds on so many GPUs."""

    def predicted_s(run: Run, calibration: Calibration) -> float:
        links = calibration.topology(ring(run.plan.ranks))
        return calibration.compute * own[1] + links.whole(_all_reduce(reduced, run.plan.ranks)).latency_s

    batch = _BATCHES[model]
    ours = calibrate([Run(plan_on(gpus), batch * gpus, own[gpus]) for gpus in (1, 8)], predicted_s)
    seconds_a_byte = (own[8] - own[1]) / _all_reduce(reduced, 8).traffic_bytes

    def nominal(gpus: int) -> float:
        return own[1] + ring_s(_all_reduce(reduced, gpus), between(gpus) if gpus > 4 else INSIDE)

    return {
        "communication free (trivial)": lambda gpus: own[1],
        "nominal link": nominal,
        "one effective bandwidth (fitted)": lambda gpus: (
            own[1] + ring_s(_all_reduce(reduced, gpus), AlphaBeta(0.0, seconds_a_byte))
        ),
        f"ours, {ours.bandwidth:.2f} of the bandwidth": lambda gpus: predicted_s(
            Run(plan_on(gpus), batch * gpus, own[gpus]), ours
        ),
    }


def _all_reduce(n_bytes: int, ranks: int) -> Collective:
    return Collective("all_reduce", n_bytes, ranks)
