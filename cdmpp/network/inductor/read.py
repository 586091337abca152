"""InductorNetwork: a workload as the kernels that ``torch.compile`` launches, one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import UnsupportedNetworkError
from cdmpp.network.eager.graph import GrownTasks, StandIns
from cdmpp.network.eager.read import EagerNetwork
from cdmpp.network.graph import Call, NetworkGraph, check_runs
from cdmpp.network.inductor.fused import FUSED, operator_for
from cdmpp.network.inductor.kernel import Kernel, kernels_of
from cdmpp.network.inductor.lowered import ATTENTION, lower
from cdmpp.network.source.in_type import in_type
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.source.trained_model import batch_of
from cdmpp.network.workload import Workload

_WEIGHT = re.compile(r"_(parameters|buffers)_|^[pb]_")
_ARGUMENT = re.compile(r"(?:primals_|arg)(\d+)")


@dataclass(frozen=True, kw_only=True)
class InductorNetwork(EagerNetwork):
    """This network is made of fused kernels and calls of libraries."""

    kernels: tuple[Kernel, ...]
    """All kernels that are launched, of the forward and then of the backward pass."""
    no_cuda_graph: str = ""
    """The reason for which Inductor would record no CUDA graph; empty where it would."""


def read_inductor(workload: Workload, device: Device) -> InductorNetwork:
    """Read the kernels of one run of mode ``inference`` or ``forward_backward``, as Inductor fuses them for a GPU.

    Raises:
        UnsupportedNetworkError: another mode, a CPU, a graph break, or sizes that depend on values.
        CdmppError: as of ``cdmpp.network.eager.read.read_run``.
    """
    if workload.mode == "training_step":
        raise UnsupportedNetworkError(
            "mode training_step with runtime torch-compile: the update is compiled apart, and not read yet. "
            "Mode forward_backward is answered, and runtime torch answers steps"
        )
    if device.kind == "cpu":
        raise UnsupportedNetworkError(
            f"runtime torch-compile answers for GPUs: Inductor fuses otherwise for {device.name}. Use runtime torch"
        )
    network = read_torch(workload, needs_values=False)
    model, example, precision = network.model, network.example, network.precision
    if precision.autocast or precision.tf32 or precision.float8:
        raise UnsupportedNetworkError(
            f"precision {precision} with runtime torch-compile: fp32, bf16 or fp16, weights and products of one type"
        )
    if precision.weights != "float32":
        model, example = in_type(model, example, precision.weights)
    trains = workload.mode == "forward_backward"
    made = _Made(network.name, device.architecture, workload.attention)
    lower(network.name, model.train(trains), example, trains, device, made.add)
    graph = made.graph()
    check_runs(graph)
    return InductorNetwork(
        graph=graph,
        batch=batch_of(network.example),
        warnings=(*network.warnings, *_warnings(trains)),
        operators=made.grown.operators,
        stand_ins=made.stand_ins,
        trains=trains,
        tokens=None if network.cached is None else network.example[0].numel(),
        kernels=tuple(made.kernels),
        no_cuda_graph=made.no_cuda_graph,
    )


def _warnings(trains: bool) -> tuple[str, ...]:
    found = [
        "torch.compile: fused kernels are Inductor's own, read without a GPU; their times are of operators that move "
        "as much, as nobody measured fused kernels",
        "torch.compile: padding of products, which Inductor decides by measuring, is left out, and the host is taken "
        "to dispatch a kernel as eager PyTorch does an operator",
        "memory: no buffer is used again in its place",
    ]
    return (*found, "torch.compile: what is recomputed and saved is what AOTAutograd's partitioner says")[: 3 + trains]


@dataclass
class _Made:
    network: str
    place: str
    attention: str
    calls: list[Call] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    stand_ins: StandIns = field(default_factory=dict)
    no_cuda_graph: str = ""

    def __post_init__(self) -> None:
        self.grown = GrownTasks(self.network)
        self.resident: dict[str, tuple[int, int]] = {}
        """Name of an input of the graphs -> (number, bytes)."""
        self.bytes = {True: 0, False: 0}
        self.saved: dict[str, tuple[int, ...]] = {}
        """Name of a node of the forward graph that it returns -> places of the calls that made it."""
        self.results: tuple[int, ...] = ()

    def add(self, graph: Any, is_backward: bool, nodes: Sequence[Any]) -> None:
        """Add the calls of one scheduled graph; the forward pass comes first. ``nodes`` are those of Dynamo."""
        _check_attention(graph, nodes)
        arguments = [node for node in nodes if node.op == "placeholder"]
        sources = self._inputs(graph, is_backward, arguments)
        for kernel in kernels_of(graph, self.place, self.attention):
            before = tuple(dict.fromkeys(place for name in kernel.reads for place in sources.get(name, ())))
            if kernel.launches:
                resident = tuple(dict.fromkeys(self.resident[one] for one in kernel.reads if one in self.resident))
                before = self._launch(kernel, before, resident, "backward " if is_backward else "")
            elif before and (size := sum(size for _, size in kernel.writes)):
                call = self.calls[before[-1]]
                if not call.output_bytes:  # a part of what a library gave in one tuple
                    self.calls[before[-1]] = _with_bytes(call, call.output_bytes + size)
            sources.update((name, before) for name, _ in kernel.writes)
        names = graph.get_output_names()
        returned = [places for name in names for places in sources.get(name, ())]
        self.results = tuple(dict.fromkeys((*self.results, *returned)))
        last = next(node for node in graph.module.graph.nodes if node.op == "output").args[0]
        for node, value in zip(last, graph.graph_outputs, strict=True):
            if hasattr(node, "name"):
                self.saved[node.name] = sources.get(value.get_name(), ())
        self.no_cuda_graph = self.no_cuda_graph or graph.disable_cudagraphs_reason or ""

    def _inputs(self, graph: Any, is_backward: bool, arguments: Sequence[Any]) -> dict[str, tuple[int, ...]]:
        sources: dict[str, tuple[int, ...]] = {}
        first = None
        for node in graph.module.graph.nodes:
            if node.op != "placeholder" or node.name in self.resident:
                continue
            if is_backward and node.name in self.saved:
                sources[node.name] = self.saved[node.name]
                continue
            size = node.meta["val"].untyped_storage().nbytes() if hasattr(node.meta.get("val"), "nbytes") else 0
            self.resident[node.name] = len(self.resident), size
            number = _ARGUMENT.match(node.name)
            if number is None:
                continue  # a gradient that the backward pass is given
            first = int(number[1]) if first is None else first
            place = int(number[1]) - first
            is_weight = place < len(arguments) and bool(_WEIGHT.search(str(arguments[place].target)))
            self.bytes[is_weight] += size
        return sources

    def _launch(
        self, kernel: Kernel, before: tuple[int, ...], resident: tuple[tuple[int, int], ...], phase: str
    ) -> tuple[int, ...]:
        self.kernels.append(kernel)
        operators = kernel.operators or (operator_for(kernel),)
        stands_for = FUSED if kernel.is_fused else kernel.stands_for
        for index, operator in enumerate(operators):
            place, is_last = len(self.calls), index == len(operators) - 1
            written = sum(size for _, size in kernel.writes) if is_last else 0
            name, task = f"{phase}{kernel.name}#{place}", self.grown.task(operator)
            self.calls.append(Call(name, task, before, written, resident, is_joined=index > 0))
            if stands_for:
                self.stand_ins[place] = stands_for
            before, resident = (place,), ()
        return before

    def graph(self) -> NetworkGraph:
        """Return the graph of all calls."""
        return NetworkGraph(
            self.network, tuple(self.calls), self.grown.tasks, 0, self.bytes[True], self.bytes[False], self.results
        )


def _check_attention(graph: Any, nodes: Sequence[Any]) -> None:
    """Refuse attention that a CPU, on whose tensors it was traced, does not fuse: a GPU may."""
    asked = sum(ATTENTION in str(node.target) for node in nodes if node.op == "call_function")
    fused = sum("attention" in str(node.target) for node in graph.module.graph.nodes if node.op == "call_function")
    if fused < asked:
        raise UnsupportedNetworkError(
            f"{asked - fused} calls of scaled_dot_product_attention are taken apart where they are traced, on a CPU; a "
            "GPU may fuse them. Runtime torch answers for them"
        )


def _with_bytes(call: Call, output_bytes: int) -> Call:
    return replace(call, output_bytes=output_bytes)
