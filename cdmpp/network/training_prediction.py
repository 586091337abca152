"""StepPrediction: the time of a training step on a device, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.training_step import PHASES, TrainingStep


@dataclass(frozen=True)
class StepPrediction:
    """This is one training step of one rank on one device."""

    step: TrainingStep
    prediction: NetworkPrediction
    """Prediction for all calls, as for any network: kernels, timeline, warnings."""

    @property
    def latency_s(self) -> float:
        """The whole step takes so long."""
        return self.prediction.latency_s

    @property
    def phase_s(self) -> dict[str, float]:
        """Each phase takes the time from the end of the phase before to its own end; they sum up to the step."""
        spans, ends, begin = self.prediction.timeline.spans, dict[str, float](), 0.0
        for phase in PHASES:
            own = [spans[call.call.name].end_s for call in self.step.calls if call.phase == phase]
            end = max(own, default=begin)
            ends[phase], begin = max(0.0, end - begin), max(begin, end)
        return ends

    @property
    def recomputed_s(self) -> float:
        """Calls of the forward pass run again for so long in the backward pass, without pauses of the host."""
        spans = self.prediction.timeline.spans
        return sum(spans[one.call.name].end_s - spans[one.call.name].start_s for one in self.step.recomputed)

    @property
    def ready_s(self) -> dict[str, float]:
        """The gradient of each parameter is ready so many seconds after the start of the step."""
        spans = self.prediction.timeline.spans
        return {
            one.name: spans[self.step.calls[one.ready].call.name].end_s for one in self.step.parameters if one.is_used
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON takes them; units are in the names of the keys."""
        step = self.step
        return {
            "network": step.graph.name,
            "device": self.prediction.device,
            "model": self.prediction.model,
            "schedule": self.prediction.schedule,
            "precision": self.prediction.precision,
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
