"""PreparedNetwork: a compiled network, a device, and the program that was chosen for each of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cdmpp.devices import Device
from cdmpp.network.compiled.choice import Chooser, Chosen
from cdmpp.network.compiled.cold import cold_seconds, levels_of
from cdmpp.network.compiled.replay import by_task
from cdmpp.network.compiled.rule import ScheduleRule
from cdmpp.network.compiled.stored_graph import CompiledNetwork
from cdmpp.network.compose import bound_of
from cdmpp.network.graph import NetworkGraph
from cdmpp.network.interval import NetworkErrors
from cdmpp.network.prediction import KernelPrediction
from cdmpp.network.runtime import PricedNetwork
from cdmpp.predict.flags import OF_STEPS
from cdmpp.predict.model_folder import find_model, shared
from cdmpp.predict.predictor import Predictor

_UNTUNED = (
    "programs are untuned: nobody runs these. Naive loops take 10 to 40 times as long as PyTorch on a CPU; "
    "schedule best_of:16 says what tuning would reach"
)
_NO_BACKWARD = "the model learned from no kernel of a backward pass on this device: they are unlike those that it knows"


@dataclass(frozen=True)
class PreparedNetwork:
    """A compiled network runs these programs on a device, chosen by one model."""

    read: CompiledNetwork
    chosen: Mapping[str, Chosen]
    """The program of each task, by task id."""
    device: Device
    predictor: Predictor
    model: str
    rule: ScheduleRule
    chooser: Chooser

    @staticmethod
    def of(
        read: CompiledNetwork, device: Device, model: str, rule: ScheduleRule, progress: bool = True
    ) -> PreparedNetwork:
        """Choose a program for each task; ``CdmppError`` where a task has none, or a database cannot be read."""
        chooser = _chooser(model, device, rule)
        step = read.step
        scaled = {} if step is None else step.scaled
        tasks = {key: task for key, task in read.graph.tasks.items() if key not in scaled}
        chosen = chooser.choose(tasks, progress)
        chosen |= {key: _times(chosen[base], ratio) for key, (base, ratio) in scaled.items()}
        return PreparedNetwork(read, chosen, device, chooser.predictor, model, rule, chooser)

    def with_model(self, model: str | Path, progress: bool = True) -> PreparedNetwork:
        """Predict the same programs by another model; not of a step whose backward pass is a ratio."""
        chooser = _chooser(str(model), self.device, ScheduleRule("untuned"))
        schedules = {key: one.schedule for key, one in self.chosen.items()}
        chosen = chooser.value(self.read.graph.tasks, schedules, progress)
        return replace(self, chosen=chosen, predictor=chooser.predictor, model=str(model), chooser=chooser)

    def priced(self) -> PricedNetwork:
        """Price each call: its program alone, and what its data outside the caches costs."""
        read, graph, chosen = self.read, self.read.graph, self.chosen
        alone = [chosen[call.task_id].latency_s for call in graph.calls]
        cold = cold_seconds(graph, self.device, alone)
        colder = by_task(graph, cold)
        known = self.predictor.trained_on.get(self.device.name, self.device)
        unlearned = "" if read.step is None or self._learned_steps() else _NO_BACKWARD
        return PricedNetwork(
            read=read,
            device=self.device,
            model=self.model,
            schedule=str(self.rule),
            kernels=tuple(_kernel(graph, key, chosen[key], colder[key], known) for key in graph.counts),
            call_s=[one + extra for one, extra in zip(alone, cold, strict=True)],
            errors=NetworkErrors.of(self.device.name, self.model, self.rule.kind),
            no_intervals=unlearned,
            by_datasheet=self.device.name not in self.predictor.trained_on,
            warnings=(*((unlearned,) if unlearned else ()), *self._warnings(), *self.chooser.warnings),
        )

    def _learned_steps(self) -> bool:
        learned = self.predictor.card.get(OF_STEPS)
        return isinstance(learned, Mapping) and bool(learned.get(self.device.name))  # a card may say anything

    def _warnings(self) -> list[str]:
        device, found = self.device, []
        if device.name not in self.predictor.trained_on:
            unseen = self.predictor.unseen
            error = unseen.expected(device.name, False) if unseen else "Expect large errors"
            found.append(f"the model never saw {device.name}, so it goes by its datasheet alone. {error}")
        if self.rule.kind == "untuned":
            found.append(_UNTUNED)
        if device.launch_overheads.call_s is None:
            found.append(
                f"launch gaps of {device.name} were never measured: the total is that of its kernels, one by one"
            )
        if not levels_of(device) or device.launch_overheads.exposed_share is None:
            found.append(f"what cold caches cost on {device.name} was never measured and is left out")
        return found


def _chooser(model: str, device: Device, rule: ScheduleRule) -> Chooser:
    predictor = shared(model)
    known = predictor.trained_on.get(device.name, device)
    return Chooser(predictor, find_model(model), known, rule)


def _times(chosen: Chosen, ratio: float) -> Chosen:
    intervals = {level: (ratio * low, ratio * high) for level, (low, high) in chosen.intervals.items()}
    return replace(chosen, latency_s=ratio * chosen.latency_s, intervals=intervals)


def _kernel(graph: NetworkGraph, key: str, chosen: Chosen, cold_s: float, device: Device) -> KernelPrediction:
    task = graph.tasks[key]
    return KernelPrediction(
        task_id=key,
        name=task.op_name,
        op_class=task.op_class,
        count=graph.counts[key],
        latency_s=chosen.latency_s,
        cold_s=cold_s,
        intervals=chosen.intervals,
        flops=task.flops,
        io_bytes=task.io_bytes,
        bound=bound_of(task.flops, task.io_bytes, device),
        candidates=chosen.candidates,
        schedule=chosen.schedule,
        flags=chosen.flags,
    )
