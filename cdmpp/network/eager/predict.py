"""A network as PyTorch runs it by itself -> a ``NetworkPrediction``. Needs no TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.network.eager.backward import with_backward
from cdmpp.network.eager.graph import StandIns, library_graph_of
from cdmpp.network.graph import NetworkGraph, check_runs, peak_activation_bytes
from cdmpp.network.memory import with_memory_told
from cdmpp.network.prediction import KernelPrediction, NetworkPrediction
from cdmpp.network.source.source import read_torch
from cdmpp.network.source.trained_model import batch_of
from cdmpp.operators.operator import PRODUCTS, LibraryOperator
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.flags import FLAGS
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor
from cdmpp.programs.compiled import EAGER, compiled_flag, compiled_modules, compiled_noted
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Timeline

KERNEL_S = 3e-6
"""So long after another ends a kernel that does nothing has ended."""
_CACHED_BYTES, _FAR = 1 << 20, 8
"""Calls that move more than the first, and less than so many times a second-level cache, may find their data there."""
_GPU, _HOST = "device", "host"


@dataclass(frozen=True)
class LibraryNetwork:
    """A network of library operators."""

    graph: NetworkGraph
    operators: Mapping[str, LibraryOperator]
    """By task id."""
    stand_ins: StandIns
    batch: int
    flags: tuple[str, ...] = ()
    """Differences from the run that was asked for, a sentence each."""


def read_library_network(
    given: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    train: bool = False,
    kind: str = "gpu",
) -> LibraryNetwork:
    """The calls of one run of ``given`` on a ``kind`` of device, see ``predict_library_network``."""
    from cdmpp.network.source.half import in_half
    from cdmpp.programs.networks import export
    from cdmpp.programs.regions import flags_of

    network = read_torch(given, example_inputs, batch=batch, inputs=inputs, dtype=dtype, needs_values=False)
    model, example = network.model, network.example
    if network.dtype != "float32":
        model, example = in_half(model, example)
    on = "cpu" if kind == "cpu" else "gpu"
    with compiled_noted() as compiled:
        exported = export(model.train(train), example, eager=True, trains=train, kind=on)
    made = library_graph_of(exported, network.name, kind)
    check_runs(made.graph)
    whole = with_backward(made) if train else made
    flags = (*compiled_flag(compiled | compiled_modules(network.model), EAGER), *flags_of(exported))
    return LibraryNetwork(whole.graph, whole.operators, made.stand_ins, batch_of(network.example), flags)


def predict_library_network(
    given: Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    model: str | Path | None = None,
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    train: bool = False,
    progress: bool = True,  # noqa: ARG001 - as of the other runtime: this one is done before a bar would show
) -> NetworkPrediction:
    """Time of one run of a torch model on ``device`` with PyTorch's own kernels, eagerly, before it runs there.

    Each operator of the exported graph is predicted; its host's dispatch is taken off, since in a network the host runs
    ahead. A call that is repeated, as those that were measured, finds its data in the caches of a GPU. In a network
    others ran in between: it takes no less than its part of the same call on more rows than a cache holds. The replay
    has a host that dispatches call after call and a device that runs them in that order.

    Args:
        given: a torch module, or a name of one: see ``network.source.KINDS``. ``file.py:function`` runs it.
        example_inputs: of a torch module.
        device: name of a device, or one described in Python.
        model: folder or name of a model of library operators; None: the first that knows the device or its kind.
        batch: examples in one run, where ``given`` leaves that open.
        inputs: shapes of inputs by name, where ``given`` leaves them open.
        dtype: ``float32``, or ``float16`` for all operators.
        train: forward and backward; the optimiser's step is left out.
        progress: no bar is shown: nothing is sampled or compiled.

    Raises:
        CdmppError: what was given is no torch model, has an operator that nothing can answer for, or no such device
            or model.
    """
    sheet = devices.get(device) if isinstance(device, str) else device
    predictor, name = library_predictor(sheet, model)
    read = read_library_network(
        given, example_inputs, batch=batch, inputs=inputs, dtype=dtype, train=train, kind=sheet.kind
    )
    return with_memory_told(compose(read, predictor, name, sheet, train), sheet)


def library_predictor(sheet: Device, model: str | Path | None) -> tuple[Predictor, str]:
    """The named model of library operators, or the first that knows the device or its kind; and its name."""
    name = str(model) if model is not None else model_for(sheet.name, models(), "library").name
    return load(name), name


def compose(
    read: LibraryNetwork,
    predictor: Predictor,
    model: str,
    sheet: Device,
    train: bool = False,
    update: bool = False,
) -> NetworkPrediction:
    """The replay of a network's calls, each as ``predictor`` says; ``update``: those of an optimizer are among them."""
    graph, operators = read.graph, list(read.operators.values())
    answer = predictor.predict(operators, device=sheet)
    share = predictor.device_share(operators, sheet)
    busy = np.maximum(answer.latency_s * share, _from_memory_s(predictor, operators, sheet)) + KERNEL_S
    if sheet.kind == "cpu":  # host and device are one: a call ends before the next is dispatched
        share, busy = np.ones_like(share), answer.latency_s
    dispatch = answer.latency_s * (1 - share)
    kernels = {}
    for i, (key, operator) in enumerate(read.operators.items()):
        scale, flags = busy[i] / answer.latency_s[i], (*answer.flags[i],)
        kernels[key] = KernelPrediction(
            key, f"{operator}", operator.kind.op_class, graph.counts[key], float(busy[i]), 0.0,
            {level: (float(low[i] * scale), float(high[i] * scale)) for level, (low, high) in answer.intervals.items()},
            operator.flops, operator.io_bytes, _bound(operator, sheet), 1, "", flags,
        )  # fmt: skip
    dispatch_s = dict(zip(read.operators, dispatch.tolist(), strict=True))
    timeline = _replayed(graph, {key: one.latency_s for key, one in kernels.items()}, dispatch_s)
    device_s = timeline.busy_s.get(_GPU, 0.0)
    overhead_s = timeline.makespan_s - device_s
    levels = answer.intervals
    summed = {
        level: tuple(
            overhead_s + sum(one.count * one.intervals[level][end] for one in kernels.values()) for end in (0, 1)
        )
        for level in levels
    }
    return NetworkPrediction(
        graph.name, sheet.name, model, f"of PyTorch's libraries, {'training' if train else 'inference'}",
        tuple(kernels[key] for key in graph.counts), timeline, read.batch,
        {level: (low, high) for level, (low, high) in summed.items()},
        "the operators' intervals added up, as if all erred to one side" if levels else "the model has none there",
        overhead_s, graph.weight_bytes, graph.input_bytes, peak_activation_bytes(graph, range(len(graph.calls))), 0,
        _warnings(read, kernels, sheet, predictor, timeline, train and not update),
    )  # fmt: skip


def _from_memory_s(predictor: Predictor, operators: Sequence[LibraryOperator], sheet: Device) -> np.ndarray:
    """(n,) seconds of calls whose data no cache of a GPU holds; 0 for products, which hide it, and for small calls."""
    found, cache_bytes = np.zeros(len(operators)), 1024 * (sheet.spec["l2_kb"] or 0.0)
    places = [
        place
        for place, one in enumerate(operators)
        if one.kind.family not in PRODUCTS and _CACHED_BYTES < one.io_bytes < _FAR * cache_bytes
    ]
    if places and sheet.kind != "cpu":
        large, times = zip(*(operators[place].on_more_rows(_FAR * cache_bytes) for place in places), strict=True)
        seconds = predictor.predict(large, device=sheet).latency_s * predictor.device_share(large, sheet)
        found[places] = seconds / times
    return found


def _replayed(graph: NetworkGraph, seconds: Mapping[str, float], dispatch_s: Mapping[str, float]) -> Timeline:
    """The host dispatches in the order of the program, and the device runs in that order what was dispatched."""
    tasks = []
    for place, call in enumerate(graph.calls):
        dispatch = f"{call.name} dispatch"
        tasks.append(Task(dispatch, dispatch_s[call.task_id], (_HOST,), priority=place, label=_HOST))
        label = graph.tasks[call.task_id].op_class
        before = (dispatch, graph.calls[place - 1].name) if place else (dispatch,)
        tasks.append(Task(call.name, seconds[call.task_id], (_GPU,), before, priority=place, label=label))
    return simulate(tasks)


def _bound(operator: LibraryOperator, sheet: Device) -> str:
    peak, bandwidth = sheet.spec["fp32_tflops"], sheet.spec["bandwidth_gbps"]
    if not peak or not bandwidth:
        return ""
    return "compute" if operator.flops / (1e12 * peak) >= operator.io_bytes / (1e9 * bandwidth) else "memory"


def _warnings(
    read: LibraryNetwork,
    kernels: Mapping[str, KernelPrediction],
    sheet: Device,
    predictor: Predictor,
    timeline: Timeline,
    lacks_update: bool,
) -> tuple[str, ...]:
    told = list(read.flags)
    if sheet.name not in predictor.trained_on:
        told.append(f"the model never saw {sheet.name}, so it goes by its datasheet alone")
    if timeline.makespan_s > 1.1 * timeline.busy_s.get(_GPU, 0.0):
        told.append("the host decides: it dispatches calls slower than the device runs them, and hosts differ")
    if lacks_update:
        told.append("forward and backward alone: the step of the optimiser is left out")
    total = sum(kernel.total_s for kernel in kernels.values()) or 1.0
    by_task: dict[str, dict[str, None]] = {}
    for place, other in read.stand_ins.items():
        by_task.setdefault(read.graph.calls[place].task_id, {})[other] = None
    for key, others in by_task.items():
        if (share := kernels[key].total_s / total) > 0.01:
            told.append(f"{kernels[key].name}, {share:.0%} of the time, is the answer for {', '.join(others)} too")
    for flag, meaning in FLAGS.items():
        flagged = [kernel for kernel in kernels.values() if flag in kernel.flags]
        if flagged:
            share = sum(kernel.total_s for kernel in flagged) / total
            told.append(f"{len(flagged)} of {len(kernels)} operators, {share:.0%} of the time: {flag}: {meaning}")
    return tuple(told)
