"""A training step whose backward pass is a measured ratio of the forward pass, where no joint graph can be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.network.graph import Call, NetworkGraph, bytes_of, graph_with_ends
from cdmpp.network.source.torch_network import TorchNetwork
from cdmpp.network.source.trained_model import frozen_of, rows_of
from cdmpp.network.training_phases import live_bytes, saved_bytes
from cdmpp.network.training_step import StepCall, StepMemory, StepParameter, TrainingStep
from cdmpp.programs.networks import to_relax
from cdmpp.programs.task import Task
from cdmpp.programs.training.joint import JointGraph, Value
from cdmpp.programs.training.lowering import lowered_step
from cdmpp.programs.training.optimizers import Optimizer

BACKWARD_RATIOS: Mapping[str, float] = {
    "dense": 1.85,
    "matmul": 1.91,
    "conv2d": 1.85,
    "depthwise": 1.85,
    "winograd": 1.85,
    "softmax": 2.37,
    "norm": 2.21,
    "pool": 1.0,
    "reduce": 1.0,
    "elementwise": 1.0,
    "other": 1.0,
}
"""Backward over forward time by op class: sums over operators of transformers in training, each measured alone in
PyTorch on GPUs, published with NeuSight (ASPLOS 2025, doi 10.1145/3669940.3707265). Layer norms stand for ``norm``.
Element-wise operators lie at 0.1 to 1.9 there, most near 1. Convolutions have no such figure: linear layers stand for
them."""


def ratio_step(network: TorchNetwork, optimizer: Optimizer, batch: int, reason: str) -> TrainingStep:
    """Make the step of a network whose forward pass TVM can import; loss and dropout are left out.

    Each call of the forward pass has one of the backward pass, in reverse order. All results of the forward pass count
    as saved.

    Raises:
        CdmppError: the forward pass cannot be imported either, with operator and place.
    """
    module = to_relax(network.model, network.example)
    count = int(module["main"].attrs["num_input"])
    forward, ends = graph_with_ends(_with_all_inputs(module), network.name)
    parameters = [
        (name, parameter)
        for name, parameter in network.model.named_parameters()
        if parameter.requires_grad and parameter.is_floating_point()
    ]
    update = graph_with_ends(_update(parameters, optimizer), network.name)[0]
    joined = _joined(forward, update)
    numbers = _numbers(parameters, module, ends.parameters, count)
    ready = _ready(numbers, joined)
    frozen = [(name, one) for name, one in network.model.named_parameters() if not one.requires_grad]
    phases = [phase for phase, size in joined.sizes for _ in range(size)]
    sizes = {name: _size(parameter) for name, parameter in parameters}
    rows = {name: rows_of(parameter) for name, parameter in parameters}
    inputs = [number for number in ends.parameters[:count] if number is not None]
    trained = sum(sizes.values())
    memory = StepMemory(
        sum(_size(parameter) for parameter in network.model.parameters()),
        trained,
        optimizer.states * trained,
        sum(_size(buffer) for buffer in network.model.buffers()),
        forward.input_bytes - _weights(module, count),
        saved_bytes(joined.graph, phases, inputs),
        live_bytes(joined.graph, phases, sorted(set(ready.values()))) + trained,
    )
    warning = (
        "the backward pass is no graph of its own: each of its calls takes a measured ratio of one of the forward "
        f"pass, by op class (1 to 2.4 times as long), and loss and dropout are left out. {reason}"
    )
    return TrainingStep(
        joined.graph,
        tuple(map(StepCall, joined.graph.calls, phases)),
        tuple(StepParameter(name, sizes[name], place, numbers[name], rows[name]) for name, place in ready.items()),
        batch,
        optimizer.name,
        memory,
        warnings=(warning,),
        scaled=joined.scaled,
        frozen=frozen_of(network.model, str, _numbers(frozen, module, ends.parameters, count)),
    )


@dataclass(frozen=True)
class _Joined:
    graph: NetworkGraph
    sizes: tuple[tuple[str, int], ...]
    """Phase and number of its calls."""
    scaled: Mapping[str, tuple[str, float]]


def _joined(forward: NetworkGraph, update: NetworkGraph) -> _Joined:
    calls, tasks, scaled = list(forward.calls), dict(forward.tasks), dict[str, tuple[str, float]]()
    for place in reversed(range(len(forward.calls))):
        call = forward.calls[place]
        key = f"{call.task_id}-backward"
        tasks.setdefault(key, _renamed(forward.tasks[call.task_id], key))
        scaled[key] = call.task_id, BACKWARD_RATIOS.get(tasks[key].op_class, 1.0)
        before = tuple(dict.fromkeys((len(calls) - 1, place, *call.inputs)))
        calls.append(Call(f"{call.name} backward", key, before, call.output_bytes, call.resident, forward=place))
    first, numbers = len(calls), 1 + max((n for call in calls for n, _ in call.resident), default=0)
    for call in update.calls:
        resident = tuple((numbers + number, size) for number, size in call.resident)
        before = (first - 1, *(first + place for place in call.inputs))
        name = f"{call.name.partition('#')[0]}#{len(calls)}"
        calls.append(replace(call, name=name, inputs=before, resident=resident))
    results = tuple(range(first, len(calls)))
    whole = replace(forward, calls=tuple(calls), tasks={**tasks, **update.tasks}, results=results)
    size = len(forward.calls)
    return _Joined(whole, (("forward", size), ("backward", size), ("update", len(update.calls))), scaled)


def _renamed(task: Task, key: str) -> Task:
    return replace(task, task_id=key, op_name=f"{task.op_name} backward")


def _numbers(
    parameters: list[tuple[str, Any]], module: Any, numbers: tuple[int | None, ...], count: int
) -> dict[str, int | None]:
    """Name of a parameter -> its number in ``Call.resident``."""
    weights = [
        (weight.name.removeprefix("p_"), number)
        for weight, number in zip(module["main"].params[count:], numbers[count:], strict=True)
    ]
    plain = {name: name.replace(".", "_") for name, _ in parameters}
    return {name: next((n for weight, n in weights if weight.endswith(plain[name])), None) for name in plain}


def _ready(numbers: Mapping[str, int | None], joined: _Joined) -> dict[str, int]:
    """Name of a parameter -> the last call of the backward pass that reads it, else the last of all."""
    forward = joined.sizes[0][1]
    last: dict[int | None, int] = {}
    for place in range(forward, 2 * forward):
        for number, _ in joined.graph.calls[place].resident:
            last[number] = place
    return {name: last.get(number, 2 * forward - 1) for name, number in numbers.items()}


def _with_all_inputs(module: Any) -> Any:
    """Nothing is known when a step is deployed: weights change at each."""
    module = module.clone() if hasattr(module, "clone") else module
    module["main"] = module["main"].with_attr("num_input", len(module["main"].params))
    return module


def _update(parameters: list[tuple[str, Any]], optimizer: Optimizer) -> Any:
    """Only the optimizer's update, of gradients that are given."""
    import torch

    count = len(parameters)

    class Given(torch.nn.Module):
        def forward(self, *values: Any) -> tuple[Any, ...]:
            return values[count:]

    tensors = tuple(parameter.detach() for _, parameter in parameters)
    inputs = (*(Value("parameter", name) for name, _ in parameters), *(Value("input", "") for _ in parameters))
    results = tuple(Value("gradient", name) for name, _ in parameters)
    joint = JointGraph(Given(), (*tensors, *(torch.zeros_like(one) for one in tensors)), inputs, results, 0, (), {})
    return lowered_step(joint, optimizer)


def _weights(module: Any, count: int) -> int:
    return sum(bytes_of(parameter.ty, "a weight") for parameter in module["main"].params[count:])


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
