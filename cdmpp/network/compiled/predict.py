"""A network in, a ``NetworkPrediction`` out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.derive import cores, start_workers
from cdmpp.devices import Device
from cdmpp.errors import ModelFormatError
from cdmpp.machine_code.cpu.native import native_code
from cdmpp.network.compiled.choice import Chooser, Chosen
from cdmpp.network.compiled.cold import cold_seconds, levels_of
from cdmpp.network.compiled.replay import by_task, overhead_seconds, replay
from cdmpp.network.compiled.rule import DEFAULT, ScheduleRule
from cdmpp.network.compiled.stored_graph import ReadNetwork, graph_for
from cdmpp.network.graph import NetworkGraph, peak_activation_bytes
from cdmpp.network.interval import NetworkErrors
from cdmpp.network.memory import with_memory_told
from cdmpp.network.prediction import KernelPrediction, NetworkPrediction
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.flags import FLAGS, NO_MACHINE_CODE
from cdmpp.predict.model_folder import find_model, load
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.stored_config import WEIGHTS

_UNTUNED = (
    "programs are untuned: nobody runs these. Naive loops take 10 to 40 times as long as PyTorch on a CPU; "
    "schedule best_of:16 says what tuning would reach"
)


def predict_network(
    given: Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    model: str | Path | None = None,
    schedule: str = DEFAULT,
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    measure: bool = False,
    progress: bool = True,
) -> NetworkPrediction:
    """Time of one run of a whole network on ``device``, before anyone runs it there. Needs TVM.

    Args:
        given: a torch module, a Relax module, or a name: see ``network.source.KINDS``. ``file.py:function`` runs it.
        example_inputs: of a torch module.
        device: name of a device, or one described in Python.
        model: folder of a model or name of a shipped one; None: the first that was trained on the device.
        schedule: which program of each kernel runs: ``best_of:K``, ``untuned`` or ``database:DIR``.
        batch: examples in one run, where ``given`` leaves that open.
        inputs: shapes of inputs by name, where ``given`` leaves them open.
        dtype: ``float32``, or ``float16`` for mixed precision.
        measure: also build and run the network on this machine, which must be the device.
        progress: bars on stderr while schedules are sampled and compiled.

    Raises:
        CdmppError: what was given cannot be read or holds what has no tensor program; no such device or model.
    """
    question = answer_for(
        given, example_inputs, device=device, model=model, schedule=schedule, batch=batch, inputs=inputs, dtype=dtype,
        progress=progress,
    )  # fmt: skip
    answer = with_memory_told(question.prediction(), question.sheet)
    if not measure:
        return answer
    from cdmpp.network.compiled.checked import with_measured

    return with_measured(answer, question.read, question.chosen, question.sheet)


@dataclass(frozen=True)
class Question:
    """A network, a device, and the programs that were chosen."""

    read: ReadNetwork
    chosen: Mapping[str, Chosen]
    """By task id."""
    sheet: Device
    predictor: Predictor
    model: str
    rule: ScheduleRule
    chooser: Chooser
    warnings: tuple[str, ...]

    def asked_of(self, model: str | Path, progress: bool = True) -> Question:
        """The same programs, predicted by another model."""
        folder = find_model(str(model))
        predictor = _loaded(folder, (folder / WEIGHTS).stat().st_mtime_ns)
        sheet = predictor.trained_on.get(self.sheet.name, self.sheet)
        chooser = Chooser(predictor, folder / WEIGHTS, sheet, ScheduleRule("untuned"))
        schedules = {key: one.schedule for key, one in self.chosen.items()}
        chosen = chooser.value(self.read.graph.tasks, schedules, progress)
        return replace(self, chosen=chosen, predictor=predictor, model=str(model), chooser=chooser)

    def prediction(self) -> NetworkPrediction:
        """The replay of the chosen programs."""
        known = self.predictor.trained_on.get(self.sheet.name, self.sheet)
        return compose(self.read, self.chosen, self.sheet, known, self.predictor, self.model, self.rule, self.warnings)


def answer_for(
    given: Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    model: str | Path | None = None,
    schedule: str = DEFAULT,
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    progress: bool = True,
) -> Question:
    """As ``predict_network``, with all that it is made of. ``given`` may also be what ``graph_for`` returned."""
    sheet = devices.get(device) if isinstance(device, str) else device
    rule = ScheduleRule.parse(schedule)
    name = str(model) if model is not None else _model_name(sheet)
    folder = find_model(name)
    predictor = _loaded(folder, (folder / WEIGHTS).stat().st_mtime_ns)
    # What samples and compiles gets ready while this process reads the network.
    start = partial(_get_ready, predictor.reads_code and sheet.kind == "cpu")
    if isinstance(given, ReadNetwork):
        start()
        read = given
    else:
        read = graph_for(given, example_inputs, batch=batch, inputs=inputs, dtype=dtype, before_reading=start)
    chooser = Chooser(predictor, folder / WEIGHTS, predictor.trained_on.get(sheet.name, sheet), rule)
    chosen = chooser.choose(read.graph.tasks, progress)
    return Question(read, chosen, sheet, predictor, name, rule, chooser, (*read.flags, *chooser.warnings))


def _get_ready(reads_code: bool) -> None:
    start_workers(min(2, cores()), reads_code)
    if reads_code:  # once a machine this compiles, longer than reading takes
        threading.Thread(target=native_code, daemon=True).start()


def _model_name(sheet: Device) -> str:
    """The model trained on the device, else one that knows a device of its kind and goes by the datasheet alone."""
    entries = models()
    try:
        return model_for(sheet.name, entries).name
    except ModelFormatError:
        for entry in entries:
            if entry.usable and sheet.kind in {
                devices.get(one).kind for one in entry.devices if one in devices.names()
            }:
                return entry.name
        raise


def compose(
    read: ReadNetwork,
    chosen: Mapping[str, Chosen],
    sheet: Device,
    known: Device,
    predictor: Predictor,
    model: str,
    rule: ScheduleRule,
    warnings: Sequence[str] = (),
) -> NetworkPrediction:
    """The prediction of a graph whose programs are ``chosen``. ``known`` is the device as the model knows it."""
    graph, engines = read.graph, sheet.engines
    alone = [chosen[call.task_id].latency_s for call in graph.calls]
    cold = cold_seconds(graph, sheet, alone)
    seconds = [one + extra for one, extra in zip(alone, cold, strict=True)]
    timeline, colder = replay(graph, seconds, engines), by_task(graph, cold)
    kernels = tuple(_kernel(graph, key, chosen[key], colder[key], known) for key in graph.counts)
    errors = NetworkErrors.of(sheet.name, model, rule.kind)
    overhead_s = overhead_seconds(timeline)
    summed = _summed(kernels, overhead_s)
    blind = [kernel for kernel in kernels if NO_MACHINE_CODE in kernel.flags]
    apart = (sum(kernel.total_s for kernel in blind), _summed(blind, 0.0)) if blind else (0.0, None)
    intervals, told = errors.intervals(timeline.makespan_s, summed, *apart)
    return NetworkPrediction(
        graph.name,
        sheet.name,
        model,
        str(rule),
        kernels,
        timeline,
        read.batch,
        intervals,
        told,
        overhead_s,
        graph.weight_bytes,
        graph.input_bytes,
        peak_activation_bytes(graph, range(len(graph.calls))),
        graph.folded,
        (*_warnings(kernels, sheet, predictor, rule), *warnings),
    )


def _kernel(graph: NetworkGraph, key: str, chosen: Chosen, cold_s: float, device: Device) -> KernelPrediction:
    task = graph.tasks[key]
    return KernelPrediction(
        key,
        task.op_name,
        task.op_class,
        graph.counts[key],
        chosen.latency_s,
        cold_s,
        chosen.intervals,
        task.flops,
        task.io_bytes,
        _bound(task.flops, task.io_bytes, device),
        chosen.candidates,
        chosen.schedule,
        chosen.flags,
    )


def _bound(flops: float, io_bytes: float, device: Device) -> str:
    peak = device.spec["fp32_tflops"]
    bandwidth = device.spec["core_gbps"] if device.kind == "cpu" else device.spec["bandwidth_gbps"]
    if not peak or not bandwidth:
        return ""
    return "compute" if flops / (1e12 * peak) >= io_bytes / (1e9 * bandwidth) else "memory"


def _summed(kernels: Sequence[KernelPrediction], overhead_s: float) -> dict[float, tuple[float, float]]:
    """Ends of all kernels' intervals, each level summed: as if all erred to the same side."""
    levels = set.intersection(*(set(kernel.intervals) for kernel in kernels)) if kernels else set()
    return {
        level: (
            overhead_s + sum(kernel.count * (kernel.intervals[level][0] + kernel.cold_s) for kernel in kernels),
            overhead_s + sum(kernel.count * (kernel.intervals[level][1] + kernel.cold_s) for kernel in kernels),
        )
        for level in sorted(levels)
    }


def _warnings(
    kernels: Sequence[KernelPrediction], sheet: Device, predictor: Predictor, rule: ScheduleRule
) -> list[str]:
    told = []
    if sheet.name not in predictor.trained_on:
        error = predictor.unseen.expected(sheet.name, False) if predictor.unseen else "Expect large errors"
        told.append(f"the model never saw {sheet.name}, so it goes by its datasheet alone. {error}")
    if rule.kind == "untuned":
        told.append(_UNTUNED)
    if sheet.engines.call_s is None:
        told.append(f"launch gaps of {sheet.name} were never measured: the total is that of its kernels, one by one")
    if not levels_of(sheet) or sheet.engines.exposed_share is None:
        told.append(f"what cold caches cost on {sheet.name} was never measured and is left out")
    total = sum(kernel.total_s for kernel in kernels) or 1.0
    for flag, meaning in FLAGS.items():
        share = sum(kernel.total_s for kernel in kernels if flag in kernel.flags) / total
        count = sum(flag in kernel.flags for kernel in kernels)
        if count:
            told.append(f"{count} of {len(kernels)} kernels, {share:.0%} of the time: {flag}: {meaning}")
    return told


@lru_cache(maxsize=4)
def _loaded(folder: Path, _changed: int) -> Predictor:
    return load(folder)
