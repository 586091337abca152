"""NetworkGraph of a network as PyTorch runs it by itself: an operator a call, served by its libraries. No TVM here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.operators.aten import calls_of
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.operators.operator import LibraryOperator
from cdmpp.operators.operator_task import operator_task
from cdmpp.programs.task import Task

StandIns = dict[int, str]
"""Place of a call -> its operator, which nobody measured: another one is the answer for it."""


class LibraryGraph(NamedTuple):
    """A network as calls of operators."""

    graph: NetworkGraph
    operators: dict[str, LibraryOperator]
    """By task id."""
    stand_ins: StandIns
    parameters: dict[int, str]
    """Number, as in ``Call.resident``, of a parameter that is trained -> its name."""
    weights: frozenset[int]
    """Numbers of all parameters, buffers and constants."""
    kind: str
    """Of the device, ``cpu`` or ``gpu``: it decides what is written."""


def library_graph_of(exported: Any, name: str, kind: str = "gpu") -> LibraryGraph:
    """Of a ``torch.export.ExportedProgram``, on a ``kind`` of device: ``cpu``, or any other as ``gpu``.

    ``UnsupportedProgramError`` names what nothing can answer for.
    """
    signature = exported.graph_signature
    weights = {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
    }
    kind = "cpu" if kind == "cpu" else "gpu"
    made = _Made(name, kind)
    for node in exported.graph.nodes:
        made.add(node, node.name in weights)
    trained = {
        made.resident[node][0]: signature.inputs_to_parameters[node.name]
        for node in exported.graph.nodes
        if node.name in signature.inputs_to_parameters
        and exported.state_dict[signature.inputs_to_parameters[node.name]].requires_grad
    }
    held = frozenset(number for node, (number, _) in made.resident.items() if node.name in weights)
    return LibraryGraph(made.graph(), made.operators, made.stand_ins, trained, held, kind)


class _Made:
    def __init__(self, network: str, kind: str) -> None:
        self.network, self.kind = network, kind
        self.sources: dict[Any, tuple[int, ...]] = {}
        """Node -> places of the calls that its value comes from."""
        self.resident: dict[Any, tuple[int, int]] = {}
        """Weight or input of the network -> (number, bytes)."""
        self.calls: list[Call] = []
        self.tasks: dict[str, Task] = {}
        self.operators: dict[str, LibraryOperator] = {}
        self.stand_ins: StandIns = {}
        self.bytes = {True: 0, False: 0}
        self.views = 0
        self.results: tuple[int, ...] = ()

    def add(self, node: Any, is_weight: bool) -> None:
        if node.op == "placeholder":
            size = _bytes(node.meta.get("val"))
            self.bytes[is_weight] += size
            self.resident[node] = len(self.resident), size
            self.sources[node] = ()
        elif node.op == "output":
            self.results = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self.sources[one]))
        elif node.op == "call_function":
            self._call(node)
        else:
            self.sources[node] = ()

    def _call(self, node: Any) -> None:
        found = calls_of(node)
        before = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self.sources[one]))
        if not found.operators:
            self.views += 1
            self.sources[node] = before
            if len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in self.resident:
                self.resident[node] = self.resident[node.all_input_nodes[0]]
            return
        reads = tuple(dict.fromkeys(self.resident[one] for one in node.all_input_nodes if one in self.resident))
        for operator in found.operators:
            task = operator_task(operator, self.network)
            self.tasks.setdefault(task.task_id, task)
            self.operators[task.task_id] = operator
            if found.stands_for:
                self.stand_ins[len(self.calls)] = found.stands_for
            written = int(operator.written_elements * operator.element_bytes)
            if operator is found.operators[-1]:
                written = sum(map(_bytes, tensors_in(node.meta["val"])))
            if self.kind in found.fused_on and operator is not found.operators[-1]:
                # of each row the sum of its exponentials stays
                written = operator["rows"] * operator.element_bytes if operator.name == "softmax" else 0
            elif found.dropped and operator.name == "softmax":
                written *= 3  # what was not dropped, and the mask, are as large
            self.calls.append(Call(f"{node.name}#{len(self.calls)}", task.task_id, before, written, reads))
            before, reads = (len(self.calls) - 1,), ()
        self.sources[node] = before

    def graph(self) -> NetworkGraph:
        tasks, weights, inputs = self.tasks, self.bytes[True], self.bytes[False]
        return NetworkGraph(self.network, tuple(self.calls), tasks, 0, weights, inputs, self.results, self.views)


def _bytes(value: Any) -> int:
    if not hasattr(value, "shape"):
        return 0
    return math.prod(int(size) for size in value.shape) * value.dtype.itemsize
