"""Training steps predicted and run on this machine: the whole, and what each phase takes.

python -m benchmarks.training_step_time DEVICE MODEL,MODEL [NETWORK ...] prints a row for each network of the zoo that
trains (``resnet18@train``) and each model. A step is compiled by TVM without tuning. Beside it stands the usual guess:
three times the measured forward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp import devices, predict_step
from cdmpp.network.compiled.measured import MeasuredNetwork, measure_network
from cdmpp.network.compiled.training_read import step_of
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.training_step import PHASES, TrainingStep
from cdmpp.programs.models import build_model
from cdmpp.programs.sampling import NO_SCHEDULE
from cdmpp.programs.training.joint import joint_graph
from cdmpp.programs.training.loss import with_loss
from cdmpp.programs.training.lowering import lowered_step
from cdmpp.programs.training.optimizers import optimizer_of
from cdmpp.programs.zoo import network_of, read_zoo

NETWORKS = ("resnet18@train", "gpt2@train")


def step_and_module(name: str) -> tuple[TrainingStep, Any]:
    """Return the step of a network of the zoo that trains, and the module that is compiled."""
    spec = network_of(read_zoo(), name)
    model, inputs = build_model(spec)
    update = optimizer_of(spec["train"])
    joint = joint_graph(*with_loss(model.train(), inputs, "cross_entropy"))
    lowered = lowered_step(joint, update)
    return step_of(joint, lowered, update, name, int(inputs[0].shape[0])), lowered


def measured_phases(step: TrainingStep, found: MeasuredNetwork) -> dict[str, float]:
    """Phase -> seconds of its kernels within the step."""
    pairs = list(zip(step.calls, found.kernels_s, strict=True))
    return {phase: sum(seconds for call, seconds in pairs if call.phase == phase) for phase in PHASES}


def row(name: str, predicted: StepPrediction, found: MeasuredNetwork, phases: Mapping[str, float]) -> str:
    """Milliseconds measured and predicted, errors, shares of the phases."""
    guess = 3 * phases["forward"]
    shares = (
        " / ".join(f"{100 * one[phase] / sum(one.values()):.0f}" for phase in PHASES)
        for one in (phases, predicted.phase_s)
    )
    cells = [
        f"`{name}`", predicted.prediction.model, f"{len(predicted.step.calls)}",
        f"{1e3 * found.latency_s:.1f}", f"{1e3 * predicted.latency_s:.1f}",
        f"{100 * (predicted.latency_s / found.latency_s - 1):+.1f}", f"{100 * (guess / found.latency_s - 1):+.1f}",
        *(f"{100 * (predicted.phase_s[phase] / phases[phase] - 1):+.0f}" for phase in PHASES), *shares,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main(device: str, models: Sequence[str], names: Sequence[str]) -> None:
    """Predict first, then run: nothing else may run on the machine meanwhile."""
    heads = ["network", "model", "calls", "measured, ms", "predicted, ms", "error %", "3 x forward, error %"]
    heads += [f"{phase} %" for phase in PHASES] + ["shares measured", "shares predicted"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in names:
        step, module = step_and_module(name)
        predicted = [
            predict_step(step, device=device, model=model, schedule="untuned", progress=False) for model in models
        ]
        untuned = dict.fromkeys(step.graph.tasks, NO_SCHEDULE)
        found = measure_network(module, step.graph, untuned, devices.get(device), alone=False)
        for one in predicted:
            print(row(name, one, found, measured_phases(step, found)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("device")
    parser.add_argument(
        "models", help="folders or names of models, with commas between; they must not have trained on these networks"
    )
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    options = parser.parse_args()
    main(options.device, options.models.split(","), options.networks)
