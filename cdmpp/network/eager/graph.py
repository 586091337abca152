"""NetworkGraph of a network as PyTorch runs it by itself: an operator a call, served by its libraries. No TVM here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.operators.aten import calls_of
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.operators.aten_operands import operands_of
from cdmpp.operators.operator import PRODUCTS, EagerOperator
from cdmpp.operators.operator_task import operator_task
from cdmpp.programs.regions import Recomputed, has_gradient, recomputed_in
from cdmpp.programs.task import Task

StandIns = dict[int, str]
"""Place of a call -> its operator, which nobody measured: another one is the answer for it."""


class Factor(NamedTuple):
    """An operand of a product."""

    reads: frozenset[int]
    """Places of the calls that it comes from."""
    sources: frozenset[int]
    """Places as in ``Learning``; ``weights`` are numbers as there."""
    weights: frozenset[int]


class Learning(NamedTuple):
    """The receivers of the gradient of a call's result, and the regions for which the call runs again."""

    sources: frozenset[int] = frozenset()
    """Places of the calls whose results it is passed on to: not through ``detach``, nor where gradients are off."""
    weights: frozenset[int] = frozenset()
    """Numbers of the parameters that it is passed on to."""
    again: tuple[Recomputed, ...] = ()
    """Regions around it that ``torch.utils.checkpoint`` recomputes, the outermost first."""
    end: int = 0
    """Place of the last call of the kernel that it belongs to: its own, unless several calls are one kernel."""
    factors: tuple[Factor, ...] = ()
    """The first factor of a product, the second one, and what is added; empty where they cannot be distinguished."""


class EagerGraph(NamedTuple):
    """A network as calls of operators."""

    graph: NetworkGraph
    operators: dict[str, EagerOperator]
    """Task id -> operator."""
    stand_ins: StandIns
    parameters: dict[int, str]
    """Number, as in ``Call.resident``, of a parameter that is trained -> its name."""
    weights: frozenset[int]
    """Numbers of all parameters, buffers and constants."""
    kind: str
    """Kind of the device, ``cpu`` or ``gpu``: it decides what is written."""
    learning: tuple[Learning, ...] = ()
    """One a call, of a network that was exported to be trained."""


def eager_graph_of(exported: Any, name: str, kind: str = "gpu") -> EagerGraph:
    """Make the graph of a ``torch.export.ExportedProgram`` on a ``kind`` of device: ``cpu``, or any other as ``gpu``.

    ``UnsupportedProgramError`` names what nothing can answer for.
    """
    signature = exported.graph_signature
    weights = {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
    }
    kind = "cpu" if kind == "cpu" else "gpu"
    named = signature.inputs_to_parameters
    trained = {key: name for key, name in named.items() if exported.state_dict[name].requires_grad}
    made = _Made(name, kind)
    for node in exported.graph.nodes:
        made.add(node, node.name in weights, node.name in trained)
    parameters = {number: trained[node.name] for node, (number, _) in made.resident.items() if node.name in trained}
    held = frozenset(number for node, (number, _) in made.resident.items() if node.name in weights)
    return EagerGraph(
        made.graph(), made.operators, made.stand_ins, parameters, held, kind, tuple(made.learning)
    )  # fmt: skip


class _Made:
    def __init__(self, network: str, kind: str) -> None:
        self.network, self.kind = network, kind
        self.sources: dict[Any, tuple[int, ...]] = {}
        """Node -> places of the calls that its value comes from."""
        self.resident: dict[Any, tuple[int, int]] = {}
        """Weight or input of the network -> (number, bytes)."""
        self.learned: dict[Any, Learning] = {}
        """Node -> what a gradient of its value goes to."""
        self.learning: list[Learning] = []
        self.calls: list[Call] = []
        self.tasks: dict[str, Task] = {}
        self.operators: dict[str, EagerOperator] = {}
        self.stand_ins: StandIns = {}
        self.bytes = {True: 0, False: 0}
        self.views = 0
        self.results: tuple[int, ...] = ()

    def add(self, node: Any, is_weight: bool, is_trained: bool) -> None:
        self.learned[node] = Learning()
        if node.op == "placeholder":
            size = _bytes(node.meta.get("val"))
            self.bytes[is_weight] += size
            self.resident[node] = len(self.resident), size
            self.sources[node] = ()
            if is_trained:
                self.learned[node] = Learning(weights=frozenset((self.resident[node][0],)))
        elif node.op == "output":
            self.results = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self.sources[one]))
        elif node.op == "call_function":
            self._call(node)
        else:
            self.sources[node] = ()

    def _call(self, node: Any) -> None:
        found = calls_of(node)
        before = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self.sources[one]))
        learning = self._learning(node)
        if not found.operators:
            self.views += 1
            self.sources[node], self.learned[node] = before, learning
            if len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in self.resident:
                self.resident[node] = self.resident[node.all_input_nodes[0]]
            return
        reads = tuple(dict.fromkeys(self.resident[one] for one in node.all_input_nodes if one in self.resident))
        again, is_one = recomputed_in(node), self.kind in found.fused_on
        end = len(self.calls) + len(found.operators) - 1
        factors = tuple(self._factor(one) for one in operands_of(node))
        for operator in found.operators:
            task = operator_task(operator, self.network)
            self.tasks.setdefault(task.task_id, task)
            self.operators[task.task_id] = operator
            if found.stands_for:
                self.stand_ins[len(self.calls)] = found.stands_for
            written = int(operator.written_elements * operator.element_bytes)
            if operator is found.operators[-1]:
                written = sum(map(_bytes, tensors_in(node.meta["val"])))
            if is_one and operator is not found.operators[-1]:
                # of each row the sum of its exponentials stays
                written = operator["rows"] * operator.element_bytes if operator.name == "softmax" else 0
            elif found.dropped and operator.name == "softmax":
                written *= 3  # what was not dropped, and the mask, are as large
            self.calls.append(Call(f"{node.name}#{len(self.calls)}", task.task_id, before, written, reads))
            place = len(self.calls) - 1
            is_product = operator.kind.family in PRODUCTS and operator is found.operators[0]
            own = factors if is_product and (learning.sources or learning.weights) else ()
            self.learning.append(learning._replace(again=again, end=end if is_one else place, factors=own))
            before, reads = (place,), ()
            learning = Learning(frozenset(before)) if learning.sources or learning.weights else Learning()
        self.sources[node], self.learned[node] = before, learning

    def _factor(self, node: Any) -> Factor:
        learned = self.learned[node]
        return Factor(frozenset(self.sources[node]), learned.sources, learned.weights)

    def _learning(self, node: Any) -> Learning:
        """Return what a value learns: nothing if it is made with gradients off, detached, or of whole numbers."""
        if not has_gradient(node):
            return Learning()
        given = [self.learned[one] for one in node.all_input_nodes]
        return Learning(
            frozenset().union(*(one.sources for one in given)), frozenset().union(*(one.weights for one in given))
        )

    def graph(self) -> NetworkGraph:
        tasks, weights, inputs = self.tasks, self.bytes[True], self.bytes[False]
        return NetworkGraph(self.network, tuple(self.calls), tasks, 0, weights, inputs, self.results, self.views)


def _bytes(value: Any) -> int:
    if not hasattr(value, "shape"):
        return 0
    return math.prod(int(size) for size in value.shape) * value.dtype.itemsize
