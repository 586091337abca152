"""What predictions are made from: seconds and bytes of each layer by itself on one device, and of messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.chain import Chain, Part
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph
from cdmpp.partition.problem import PartitionProblem
from cdmpp.partition.processes.stash import Stash
from cdmpp.plans.schedules import SCHEDULES

_ROUNDS, _WARM = 24, 4
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def profile(
    model: nn.Sequential,
    loss: Loss,
    optimizer: Callable[..., torch.optim.Optimizer],
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> dict[str, Any]:
    """Train on one batch over and over, layer by layer; the median seconds of each layer, and the bytes it saves.

    The loss belongs to the last layer. A result counts where it is made if that layer or the next one saves it.
    """
    count, trains, updates_s = len(model), optimizer(model.parameters()), []
    forward_s, backward_s = np.zeros((_ROUNDS, count)), np.zeros((_ROUNDS, count))
    stash, saved, outputs = Stash([*model.parameters(), *model.buffers()]), [0] * count, [0] * count
    for turn in range(_ROUNDS):
        ends, known, value = list[tuple[torch.Tensor, torch.Tensor]](), set[int](), inputs
        for place, layer in enumerate(model):
            begin = value.detach().requires_grad_(place > 0 and value.is_floating_point())
            begin_s = time.perf_counter()
            with nullcontext() if turn else stash.counting(torch.empty(0)) as found:
                value = layer(begin)
                if place == count - 1:
                    value = loss(value, targets)
            forward_s[turn, place] = time.perf_counter() - begin_s
            ends.append((begin, value))
            outputs[place] = value.nbytes
            for address, size in ({} if found is None else found).items():
                is_given = address == begin.untyped_storage().data_ptr()
                if address not in known and (place or not is_given):
                    saved[place - is_given] += size
                known.add(address)
        gradient = None
        for place in reversed(range(count)):
            begin, end = ends[place]
            begin_s = time.perf_counter()
            torch.autograd.backward(end, gradient)
            backward_s[turn, place] = time.perf_counter() - begin_s
            gradient = begin.grad
        begin_s = time.perf_counter()
        trains.step()
        trains.zero_grad()
        updates_s.append(time.perf_counter() - begin_s)
    return {
        "forward_s": np.median(forward_s[_WARM:], 0).tolist(), "backward_s": np.median(backward_s[_WARM:], 0).tolist(),
        "update_s": float(np.median(updates_s[_WARM:])), "saved_bytes": saved, "output_bytes": outputs,
        "parameter_bytes": [sum(one.nbytes for one in layer.parameters()) for layer in model],
        "input_bytes": inputs.nbytes,
    }  # fmt: skip


def chain_of(
    measured: dict[str, Any], cuts: Sequence[int], schedule: str, micro_batches: int, link: AlphaBeta
) -> Chain:
    """The stages with measured layers, as the planner knows them; messages go while stages compute."""
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
    device = StageDevice(
        "core", np.array(measured["forward_s"]), np.array(measured["backward_s"]), link, measured["update_s"]
    )
    bounds = [0, *cuts, count]
    parts = tuple(Part(tuple(range(*pair)), 0) for pair in zip(bounds, bounds[1:], strict=False))
    problem = PartitionProblem(graph, (device,) * len(parts), SCHEDULES[schedule](), micro_batches)
    return Chain(problem, parts)
