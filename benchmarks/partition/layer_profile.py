"""What predictions are made from: seconds and bytes of each layer by itself on one device, and of messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.partition.engine import FREE, Engine
from cdmpp.partition.chain import Chain, Part
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.processes.stash import Stash
from cdmpp.plans.schedules import SCHEDULES

_ROUNDS, _WARM = 120, 30
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def profile(
    model: nn.Sequential,
    loss: Loss,
    optimizer: Callable[..., torch.optim.Optimizer],
    data: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, Any]:
    """Train step by step; the mean seconds of each layer, and the bytes it saves.

    One forward and one backward pass of the whole network, as a stage runs them, with the clock read between layers:
    passes of single layers would each pay for a pass of its own. The loss belongs to the last layer. A result counts
    where it is made if that layer or the next one saves it.
    """
    count, trains, updates_s, data_s = len(model), optimizer(model.parameters()), list[float](), list[float]()
    forward_s, backward_s = np.zeros((_ROUNDS, count)), np.zeros((_ROUNDS, count))
    stash, saved, outputs = Stash([*model.parameters(), *model.buffers()]), [0] * count, [0] * count
    for turn in range(_ROUNDS):
        begin_s = time.perf_counter()
        inputs, targets = data(turn)
        data_s.append(time.perf_counter() - begin_s)
        known, value, ends_s = set[int](), inputs, [0.0] * count
        for place, layer in enumerate(model):
            given, begin_s = value, time.perf_counter()
            with nullcontext() if turn else stash.counting(torch.empty(0)) as found:
                value = layer(value)
                if place == count - 1:
                    value = loss(value, targets)
            forward_s[turn, place] = time.perf_counter() - begin_s
            outputs[place] = value.nbytes
            if value.requires_grad:
                value.register_hook(partial(_stamp, ends_s, place))
            for address, size in ({} if found is None else found).items():
                is_given = address == given.untyped_storage().data_ptr()
                if address not in known and (place or not is_given):
                    saved[place - is_given] += size
                known.add(address)
        torch.autograd.backward(value)
        begins_s = [time.perf_counter(), *ends_s[:-1]]  # of the layer behind: there a layer's backward pass ends
        backward_s[turn] = np.maximum(np.array(begins_s) - ends_s, 0.0)
        begin_s = time.perf_counter()
        trains.step()
        trains.zero_grad()
        updates_s.append(time.perf_counter() - begin_s)
    return {
        "forward_s": forward_s[_WARM:].mean(0).tolist(), "backward_s": backward_s[_WARM:].mean(0).tolist(),
        "update_s": float(np.mean(updates_s[_WARM:])), "data_s": float(np.mean(data_s[_WARM:])),
        "saved_bytes": saved, "output_bytes": outputs,
        "parameter_bytes": [sum(one.nbytes for one in layer.parameters()) for layer in model],
        "input_bytes": inputs.nbytes,
    }  # fmt: skip


def _stamp(ends_s: list[float], place: int, gradient: torch.Tensor) -> None:
    """Note when the gradient of a layer's result is there, and its backward pass begins."""
    del gradient
    ends_s[place] = time.perf_counter()


def chain_of(
    measured: dict[str, Any], cuts: Sequence[int], schedule: str, micro_batches: int, engine: Engine = FREE,
    data_s: float = 0.0,
) -> Chain:  # fmt: skip
    """The stages with measured layers, as the planner knows them; messages go while stages compute.

    ``data_s``: seconds in which the first and the last stage make the examples of a step.
    """
    count = len(measured["forward_s"])
    layers = tuple(
        Layer(str(place), (place - 1,) if place else (), measured["output_bytes"][place],
              saved_bytes=measured["saved_bytes"][place])
        for place in range(count)
    )  # fmt: skip
    parameters = tuple(
        Parameter(str(place), size, (place,)) for place, size in enumerate(measured["parameter_bytes"]) if size
    )
    graph = PartitionGraph(layers, parameters, measured["input_bytes"])
    forward_s = np.array(measured["forward_s"])
    for place in {0, count - 1} if cuts else {0}:
        forward_s[place] += data_s / micro_batches
    device = StageDevice(
        "core", forward_s, np.array(measured["backward_s"]), engine.link, measured["update_s"], host=engine.host
    )
    bounds = [0, *cuts, count]
    parts = tuple(Part(tuple(range(*pair)), 0) for pair in zip(bounds, bounds[1:], strict=False))
    problem = PartitionProblem(graph, (device,) * len(parts), SCHEDULES[schedule](), micro_batches)
    return Chain(problem, parts)
