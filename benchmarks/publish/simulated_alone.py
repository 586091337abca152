"""What a simulated core is off by where nothing was fitted on its device: what to expect of GPUs that nobody measured.

``python -m benchmarks.publish.simulated_alone [device=a100] [model=a100] [data=FOLDER]`` reads records of the device
that have code vectors, and puts the errors into the shipped model, which tells them of other GPUs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_device
from cdmpp.evaluation.formulas import Simulated
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load
from cdmpp.training.metrics import latency_metrics
from cdmpp.uncertainty.conformal import LEVELS
from cdmpp.uncertainty.unseen import Bounds, Unseen, task_weights

LAUNCH_S = 2.9e-6
"""Launch of a kernel: fitted to other programs on an A100, not to these records."""


def simulated_alone(dataset: LatencyDataset, unit: str) -> tuple[Unseen, int]:
    """Errors of simulated time and launches alone, and of how many programs; bounds are even to both sides.

    The model that is asked about another GPU keeps what it learned on this one, so the side of an error is not told.
    """
    simulated_s, kernels = Simulated.terms(dataset, np.arange(len(dataset)))
    coded = np.flatnonzero(np.isfinite(simulated_s))
    seconds, measured, tasks = (
        simulated_s[coded] + LAUNCH_S * kernels[coded], dataset.latency_s[coded], dataset.task_ids[coded],
    )  # fmt: skip
    error, weights = np.abs(np.log(measured / seconds)), task_weights(tasks)
    ends = {level: float(np.quantile(error, level, weights=weights, method="inverted_cdf")) for level in LEVELS}
    metrics = latency_metrics(measured, seconds, tasks, dataset.devices[coded])
    told = {key: float(metrics[key]) for key in ("mape", "median_ape")}
    return Unseen({unit: told}, Bounds({level: (-end, end) for level, end in ends.items()})), len(coded)


def main(device: str, model: str, data: str) -> None:
    """Print what was found; the shipped model has it afterwards."""
    unseen, programs = simulated_alone(load_device(device, (Path(data),)), device)
    print(f"{programs} programs: {unseen.settings()}")
    folder: Path = SHIPPED / model
    predictor = load(folder)
    predictor.unseen = unseen
    predictor.save(folder, half=True)


if __name__ == "__main__":
    run(main, device="a100", model="a100", data="datasets")
