"""StepPrediction: the time of a training step on a device, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.compiled.choice import Chosen
from cdmpp.network.compiled.predict import answer_for
from cdmpp.network.compiled.rule import DEFAULT
from cdmpp.network.compiled.stored_graph import ReadNetwork
from cdmpp.network.compiled.training_read import training_step
from cdmpp.network.memory import with_memory_told
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.source.source import NetworkSource
from cdmpp.network.training_step import PHASES, TrainingStep
from cdmpp.predict.catalogue import models
from cdmpp.predict.flags import OF_STEPS
from cdmpp.programs.training.loss import Loss

_UNMEASURED = "the model learned from no kernel of a backward pass on this device: they are unlike those that it knows"


@dataclass(frozen=True)
class StepPrediction:
    """One training step of one rank on one device."""

    step: TrainingStep
    prediction: NetworkPrediction
    """Of all calls, as of any network: kernels, timeline, warnings."""

    @property
    def latency_s(self) -> float:
        """Of the whole step."""
        return self.prediction.latency_s

    @property
    def phase_s(self) -> dict[str, float]:
        """Phase -> seconds from the end of the phase before to its own end; they sum up to the step."""
        spans, ends, begin = self.prediction.timeline.spans, dict[str, float](), 0.0
        for phase in PHASES:
            own = [spans[call.call.name].end_s for call in self.step.calls if call.phase == phase]
            end = max(own, default=begin)
            ends[phase], begin = max(0.0, end - begin), max(begin, end)
        return ends

    @property
    def recomputed_s(self) -> float:
        """Seconds of the backward pass in which calls of the forward pass run again, pauses of the host left out."""
        spans = self.prediction.timeline.spans
        return sum(spans[one.call.name].end_s - spans[one.call.name].start_s for one in self.step.recomputed)

    @property
    def ready_s(self) -> dict[str, float]:
        """Parameter -> when its gradient is ready, in seconds from the start of the step."""
        spans = self.prediction.timeline.spans
        return {one.name: spans[self.step.calls[one.ready].call.name].end_s for one in self.step.parameters}

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON takes them; units are in the names of the keys."""
        step = self.step
        return {
            "network": step.graph.name,
            "device": self.prediction.device,
            "model": self.prediction.model,
            "schedule": self.prediction.schedule,
            "optimizer": step.optimizer,
            "batch": step.batch,
            "latency_s": self.latency_s,
            **{f"{phase}_s": seconds for phase, seconds in self.phase_s.items()},
            "recomputed_s": self.recomputed_s,
            "calls": step.counts,
            "recomputed_calls": len(step.recomputed),
            "tasks": len(step.graph.tasks),
            "saved_activation_bytes": step.saved_activation_bytes,
            "peak_bytes": step.peak_bytes,
            "parameter_bytes": step.memory.parameter_bytes,
            "gradient_bytes": step.memory.gradient_bytes,
            "optimizer_bytes": step.memory.state_bytes,
            "ready_s": self.ready_s,
            "is_ratio": step.is_ratio,
            "warnings": list(self.prediction.warnings),
        }


def predict_step(
    given: Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    model: str | Path | None = None,
    schedule: str = DEFAULT,
    loss: Loss = "cross_entropy",
    target: Any = None,
    optimizer: str | None = "adamw",
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    fallback: bool = True,
    progress: bool = True,
) -> StepPrediction:
    """Seconds of forward pass, backward pass and update of a network on ``device``. Needs TVM.

    Args:
        given: as of ``training_step``, or what it returned.
        example_inputs: of a torch module.
        device: name of a device, or one described in Python.
        model: folder of a model or name of a shipped one; None: the first that learned from training steps on the
            device, else the first that was trained on it.
        schedule: which program of each kernel runs: ``best_of:K``, ``untuned`` or ``database:DIR``.
        loss: as of ``training_step``, and so ``target``, ``optimizer``, ``batch``, ``inputs`` and ``fallback``.
        target: as there.
        optimizer: as there.
        batch: as there.
        inputs: as there.
        fallback: as there.
        progress: bars on stderr while schedules are sampled and compiled.

    Raises:
        CdmppError: as of ``training_step``; no such device or model.
    """
    step = given if isinstance(given, TrainingStep) else training_step(
        given, example_inputs, loss=loss, target=target, optimizer=optimizer, batch=batch, inputs=inputs,
        fallback=fallback,
    )  # fmt: skip
    tasks = {key: task for key, task in step.graph.tasks.items() if key not in step.scaled}
    read = ReadNetwork(replace(step.graph, tasks=tasks), step.batch, _no_source)
    if model is None:
        model = _model_of_steps(device if isinstance(device, str) else device.name)
    question = answer_for(read, device=device, model=model, schedule=schedule, progress=progress)
    scaled = {key: _times(question.chosen[base], ratio) for key, (base, ratio) in step.scaled.items()}
    whole = replace(question, read=replace(read, graph=step.graph), chosen={**question.chosen, **scaled})
    made = whole.prediction()
    learned = question.predictor.card.get(OF_STEPS)
    if isinstance(learned, Mapping) and learned.get(question.sheet.name):  # a card may say anything
        told = replace(made, warnings=(*step.flags, *made.warnings))
    else:
        warnings = (*step.flags, _UNMEASURED, *made.warnings)
        told = replace(made, intervals={}, intervals_from=f"none: {_UNMEASURED}", warnings=warnings)
    return StepPrediction(step, with_memory_told(told, question.sheet, step.peak_bytes))


def _model_of_steps(device: str) -> str | None:
    for entry in models():
        learned = entry.card.get(OF_STEPS)
        if entry.usable and isinstance(learned, Mapping) and learned.get(device):  # a card may say anything
            return entry.name
    return None


def _times(chosen: Chosen, ratio: float) -> Chosen:
    intervals = {level: (ratio * low, ratio * high) for level, (low, high) in chosen.intervals.items()}
    return replace(chosen, latency_s=ratio * chosen.latency_s, intervals=intervals)


def _no_source() -> NetworkSource:
    raise CdmppError("a training step is no module that could be run here: it is predicted alone")
