"""CompiledCalls: the calls of a network from the graphs that Inductor scheduled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdmpp.errors import UnsupportedNetworkError, UsageError
from cdmpp.network.eager.graph import GrownTasks, StandIns
from cdmpp.network.eager.products import in_tf32
from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.network.inductor.buffers import peak_bytes
from cdmpp.network.inductor.fused import FUSED, operator_for
from cdmpp.network.inductor.kernel import Kernel, kernels_of
from cdmpp.network.inductor.library import Attending
from cdmpp.network.inductor.lowered import ATTENTION, DROPOUT

_WEIGHT = re.compile(r"_(parameters|buffers)_|^[pb]_")
_ARGUMENT = re.compile(r"(?:primals_|arg)(\d+)")
_GIVEN = "tangents_"
"""Begin of the names of gradients that the backward pass is given."""


@dataclass
class CompiledCalls:
    """It grows with each graph that ``lower`` shows it: first that of the forward pass, then that of the backward pass.

    Attributes:
        network: name of the network.
        place: architecture of the GPU, which decides about attention; so does ``attention``, as of ``backend_of``.
        trains: whether a backward pass follows.
        tf32: whether products of float32 run in TF32.
        calls: what was launched so far; so are ``kernels``, one for each launch.
        forward: number of calls of the forward pass.
        arguments: tensors that the graphs are given, in their order: parameters, buffers and inputs.
        numbers: place of an argument -> its number in ``Call.resident``.
        ready: place of an argument -> places of the calls that make its gradient.
        saved_bytes: bytes of results that the partitioner saves for the backward pass.
        live_bytes: most bytes of results alive at a time.
        no_cuda_graph: the reason for which Inductor would record no CUDA graph; empty where it would.
    """

    network: str
    place: str
    attention: str
    trains: bool = False
    tf32: bool = False
    calls: list[Call] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    stand_ins: StandIns = field(default_factory=dict)
    forward: int = 0
    arguments: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    ready: dict[int, tuple[int, ...]] = field(default_factory=dict)
    saved_bytes: int = 0
    live_bytes: int = 0
    no_cuda_graph: str = ""

    def __post_init__(self) -> None:
        self.grown = GrownTasks(self.network)
        self.resident: dict[str, tuple[int, int]] = {}
        """Name of an input of the graphs -> (number, bytes)."""
        self.bytes = {True: 0, False: 0}
        self.outputs: list[tuple[str, tuple[int, ...], int]] = []
        """Results of the forward graph: name of the buffer, places of the calls that made it, bytes; 0: an input."""
        self.results: tuple[int, ...] = ()

    def add(self, graph: Any, is_backward: bool, nodes: Sequence[Any]) -> None:
        """Add the calls of one scheduled graph; ``nodes`` are those of Dynamo."""
        asks = self.attention not in ("auto", "eager")
        if asks and not any(ATTENTION in str(node.target) for node in nodes if node.op == "call_function"):
            raise UsageError(
                f"attention {self.attention}: {self.network} does not call scaled_dot_product_attention: leave it out"
            )
        attended = _attended(graph, nodes)
        if not is_backward:
            given = [node for node in nodes if node.op == "placeholder"]
            self.arguments = [node.meta["grapharg"].example if "grapharg" in node.meta else None for node in given]
            self._arguments(graph, [bool(_WEIGHT.search(str(node.target))) for node in given])
        saved = self._saved(graph) if is_backward else {}
        sources = {name: places for name, (places, _) in saved.items()}
        attending = Attending(self.place, self.attention, self.trains, attended)
        kernels = kernels_of(graph, attending)
        for kernel in kernels:
            before = tuple(dict.fromkeys(place for name in kernel.reads for place in sources.get(name, ())))
            if kernel.launches:
                resident = tuple(dict.fromkeys(self.resident[one] for one in kernel.reads if one in self.resident))
                before = self._launch(kernel, before, resident, "backward " if is_backward else "")
            elif before and (size := sum(size for _, size in kernel.writes)):
                call = self.calls[before[-1]]
                if not call.output_bytes:  # a part of what a library gave in one tuple
                    self.calls[before[-1]] = replace(call, output_bytes=call.output_bytes + size)
            sources.update((name, before) for name, _ in kernel.writes)
        sizes = {name: size for kernel in kernels for name, size in kernel.writes}
        names = graph.get_output_names()
        outputs = [(name, sources.get(name, ()), sizes.get(name, 0)) for name in names]
        alive = {name: size for name, (_, size) in saved.items()}
        live = peak_bytes(kernels, alive, names, graph.scheduler.mutation_real_name)
        if is_backward:
            self.ready = {place: places for place, (_, places, _) in enumerate(outputs) if places}
            live += sum({name: size for name, _, size in self.outputs}.values())  # the loss, or other results
            outputs = [*self.outputs, *outputs]
        else:
            self.forward, self.outputs = len(self.calls), outputs
        self.live_bytes = max(self.live_bytes, live)
        self.results = tuple(dict.fromkeys(place for _, places, _ in outputs for place in places))
        self.no_cuda_graph = self.no_cuda_graph or graph.disable_cudagraphs_reason or ""

    def graph(self) -> NetworkGraph:
        """Return the graph of all calls."""
        return NetworkGraph(
            self.network, tuple(self.calls), self.grown.tasks, 0, self.bytes[True], self.bytes[False], self.results
        )

    def _arguments(self, graph: Any, weights: Sequence[bool]) -> None:
        """Number the inputs of a graph."""
        given = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
        first = next((int(number[1]) for node in given if (number := _ARGUMENT.match(node.name))), 0)
        for node in given:
            size = node.meta["val"].untyped_storage().nbytes() if hasattr(node.meta.get("val"), "nbytes") else 0
            self.resident[node.name] = len(self.resident), size
            if number := _ARGUMENT.match(node.name):
                place = int(number[1]) - first
                self.numbers[place] = self.resident[node.name][0]
                self.bytes[place < len(weights) and weights[place]] += size

    def _saved(self, graph: Any) -> dict[str, tuple[tuple[int, ...], int]]:
        """Return each input of the backward graph that the forward pass made: places of its calls, and bytes.

        The last results of the forward graph are the first inputs of the backward graph, in the same order.
        """
        given = [node.name for node in graph.module.graph.nodes if node.op == "placeholder"]
        kept = [name for name in given if not name.startswith(_GIVEN)]
        for name in given[len(kept) :]:
            self.resident[name] = len(self.resident), 0
        end = len(self.outputs) - len(kept)
        self.outputs, handed = self.outputs[:end], self.outputs[end:]
        found, sizes = dict[str, tuple[tuple[int, ...], int]](), dict[str, int]()
        for name, (buffer, places, size) in zip(kept, handed, strict=True):
            if buffer not in self.resident:
                found[name] = places, 0 if buffer in sizes else size  # one buffer may be saved as several tensors
                sizes[buffer] = size
                for place in places[-1:] if buffer not in found else ():
                    self._save(place, size)
        self.saved_bytes = sum(sizes.values())
        return found

    def _save(self, place: int, size: int) -> None:
        call = self.calls[place]
        self.calls[place] = replace(call, saved_bytes=min(call.output_bytes, (call.saved_bytes or 0) + size))

    def _launch(
        self, kernel: Kernel, before: tuple[int, ...], resident: tuple[tuple[int, int], ...], phase: str
    ) -> tuple[int, ...]:
        self.kernels.append(kernel)
        operators = (in_tf32(kernel.operators) if self.tf32 else kernel.operators) or (operator_for(kernel),)
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


def _attended(graph: Any, nodes: Sequence[Any]) -> float:
    """Return the share of weights that attention drops.

    Refuse attention that a CPU, on whose tensors it was traced, does not fuse: a GPU may.
    """
    asked = [node for node in nodes if node.op == "call_function" and ATTENTION in str(node.target)]
    fused = sum("attention" in str(node.target) for node in graph.module.graph.nodes if node.op == "call_function")
    if fused < len(asked):
        raise UnsupportedNetworkError(
            f"{len(asked) - fused} calls of scaled_dot_product_attention are taken apart where they are traced, on a "
            "CPU; a GPU may fuse them. Runtime torch answers for them"
        )
    dropouts = {float(node.meta.get(DROPOUT, 0.0)) for node in asked} or {0.0}
    if len(dropouts) > 1:
        raise UnsupportedNetworkError(
            f"attention drops {', '.join(f'{one:g}' for one in sorted(dropouts))} of its weights in one network: which "
            "call of a compiled graph drops which is not read. Runtime torch answers"
        )
    return dropouts.pop()
