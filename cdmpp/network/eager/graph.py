"""NetworkGraph of a network as PyTorch runs it by itself: an operator a call, served by its libraries. No TVM here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError, UsageError
from cdmpp.network.eager.divided import COPIED, RETURNS
from cdmpp.network.eager.formula import COPIES, has_formula
from cdmpp.network.eager.learning import Buffer, Factor, Learning, Part, together, trained_places
from cdmpp.network.eager.module_arguments import with_arguments
from cdmpp.network.eager.products import in_products
from cdmpp.network.eager.saved import AFTER, BEFORE, Autograd, Saved, overwritten_by
from cdmpp.network.eager.view_trees import ViewTree, ViewTrees
from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.network.precision import Precision
from cdmpp.operators.aten import ATTENTION_CALL, Calls, calls_of, name_of, place_of_node
from cdmpp.operators.aten_attention import choose, mask_of
from cdmpp.operators.aten_convolution import CONVOLUTIONS
from cdmpp.operators.aten_layout import matrix, shape_of, tensors_in
from cdmpp.operators.aten_losses import IN_PLACE
from cdmpp.operators.aten_operands import operands_of
from cdmpp.operators.attention_rules import CPU, NEWEST
from cdmpp.operators.backward import Gradient
from cdmpp.operators.convolution_memory import ConvolutionMemory, convolution_memory
from cdmpp.operators.float8 import MULTIPLE
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import OperatorTasks, task_id
from cdmpp.programs.composite import HELD, composites_apart
from cdmpp.programs.regions import gradients_on, has_gradient, recomputed_in

StandIns = dict[int, str]
"""Place of a call -> its operator, which nobody measured: another one is the answer for it."""


class EagerGraph(NamedTuple):
    """The calls of a network are operators."""

    graph: NetworkGraph
    operators: dict[str, EagerOperator]
    """Task id -> operator."""
    stand_ins: StandIns
    parameters: dict[int, str]
    """Number, as in ``Call.resident``, of a parameter that is trained -> its name."""
    frozen: dict[int, str]
    """The same of those that are not trained."""
    weights: frozenset[int]
    """Numbers of all parameters, buffers and constants."""
    kind: str
    """Kind of the device, ``cpu`` or ``gpu``: it decides what is written."""
    learning: tuple[Learning, ...] = ()
    """One a call, of a network that was exported to be trained."""
    elements: Mapping[int, float] = MappingProxyType({})
    """Place of a call that ``EagerOperator.flat`` made -> its elements."""
    places: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """Name of a node of the exported graph -> its first and its last call."""
    returns: Mapping[int, tuple[Gradient, ...]] = MappingProxyType({})
    """Place of a call -> the calls of its gradient, where they are not those of ``backward_of``."""
    silent: frozenset[int] = frozenset()
    """Places of calls whose gradient runs nothing: it is passed on as it is, or there is none."""
    scaling: str = ""
    """How factors of products in float8 are scaled; empty where there are none."""
    convolutions: Mapping[int, ConvolutionMemory] = MappingProxyType({})
    """Place of a convolution -> what a CPU holds while it and its gradients run."""
    views: Mapping[int, ViewTree] = MappingProxyType({})
    """Place of a call -> how the gradient of its result is made of those of its readers."""
    weight_views: Mapping[tuple[int, int], ViewTree] = MappingProxyType({})
    """Place of a call, and number of a parameter that it reads through a view -> how its gradient is made."""
    untold: tuple[str, ...] = ()
    """Operators that are trained, and whose gradients need temporaries that nobody knows."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the reasons to doubt its peak memory, a sentence each."""
        return tuple(
            f"memory: what the backward pass of {name} holds for a time is not known without values, and left out"
            for name in self.untold
        )


def eager_graph_of(
    exported: Any,
    name: str,
    place: str = "gpu",
    trains: bool = False,
    attention: str = "auto",
    products: Precision | None = None,
) -> EagerGraph:
    """Make the graph of a ``torch.export.ExportedProgram``.

    Args:
        exported: the program.
        name: of the network.
        place: what runs it: ``cpu``, ``gpu``, or the architecture of a GPU, such as ``sm_80``.
        trains: it was exported to be trained; autograd says what it keeps of each call.
        attention: one of ``attention_rules.ASKED``.
        products: the precision that says whether products are of another type than their factors; None: they are not.

    Raises:
        UnsupportedProgramError: nothing can answer for an operator, which it names; or attention cannot run as asked.
        UsageError: float8 or a kernel of attention is asked for, and there is no layer to convert, or no attention.
    """
    signature = exported.graph_signature
    weights = {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
    }
    kind = "cpu" if place == "cpu" else "gpu"
    named = signature.inputs_to_parameters
    trained = {key: name for key, name in named.items() if exported.state_dict[name].requires_grad}
    composites_apart(exported, _is_known)
    _check_sizes(exported)
    made = _Made(name, place, attention, Autograd(exported, kind) if trains else None, products)
    for node in exported.graph.nodes:
        made.add(node, node.name in weights, node.name in trained)
    calls = (node for node in exported.graph.nodes if node.op == "call_function")
    if attention not in ("auto", "eager") and not any(name_of(node) == ATTENTION_CALL for node in calls):
        raise UsageError(f"attention {attention}: {name} does not call scaled_dot_product_attention: leave it out")
    if products and products.float8 and all(one.dtype != "float8" for one in made.grown.operators.values()):
        raise UsageError(
            f"precision {products}: {name} has no torch.nn.Linear whose sizes are multiples of {MULTIPLE}, and no "
            "other layer is converted: take bf16"
        )
    made.calls = with_arguments(made.calls, exported.graph.nodes, made.places)
    made.bytes[True] -= _tied_bytes(exported)
    every = {number: node.name for node, (number, _) in made.resident.items() if node.name in named}
    parameters = {number: trained[name] for number, name in every.items() if name in trained}
    frozen = {number: named[name] for number, name in every.items() if name not in trained}
    held = frozenset(number for node, (number, _) in made.resident.items() if node.name in weights)
    return EagerGraph(
        made.graph(), made.grown.operators, made.stand_ins, parameters, frozen, held, kind, tuple(made.learning),
        made.elements, made.places, made.returns, frozenset(made.silent),
        (products.float8 or "") if products else "", made.convolutions, *made.views_read(trained), tuple(made.untold),
    )  # fmt: skip


def _check_sizes(exported: Any) -> None:
    """``UnsupportedProgramError`` of the first node whose size only a run knows, with its place."""
    for node in exported.graph.nodes:
        if node.op != "call_function":
            continue
        for value in tensors_in(node.meta.get("val")):
            try:
                shape_of(value)
            except UnsupportedProgramError as error:
                raise UnsupportedProgramError(
                    f"{error} at {name_of(node)} ({node.name}{place_of_node(node)}): say how many elements a selection "
                    "by value keeps (boxes, --boxes), or take it out"
                ) from None


def _is_known(node: Any) -> bool:
    if name_of(node) in (ATTENTION_CALL, "linear", "matmul"):  # whose refusals say what is wrong
        return True
    try:
        calls_of(node)
    except UnsupportedProgramError:
        return False
    return True


def _tied_bytes(exported: Any) -> int:
    """Bytes of parameters that are other ones by another name: an export lists each name."""
    named = [exported.state_dict[name] for name in exported.graph_signature.inputs_to_parameters.values()]
    return sum(map(_bytes, named)) - sum(map(_bytes, {id(one): one for one in named}.values()))


class GrownTasks:
    """This table has each task of an operator once."""

    def __init__(self, network: str, operators: Iterable[EagerOperator] = ()) -> None:
        self.network = network
        self.operators: dict[str, EagerOperator] = {}
        self.tasks = OperatorTasks(self.operators, network)
        for operator in operators:
            self.task(operator)

    def task(self, operator: EagerOperator) -> str:
        """Return the id of the operator's task, which is then one of the table."""
        self.operators.setdefault(key := task_id(operator), operator)
        return key


class _Made:
    def __init__(
        self, network: str, place: str, attention: str, autograd: Autograd | None, products: Precision | None
    ) -> None:
        self.network, self.autograd, self.products = network, autograd, products
        self.place, self.attention = place, attention
        self.owners: dict[int, int] = {}
        """Buffer -> place of the call that wrote it."""
        self.sources: dict[Any, tuple[int, ...]] = {}
        """Node -> places of the calls that its value comes from."""
        self.resident: dict[Any, tuple[int, int]] = {}
        """Weight or input of the network -> (number, bytes)."""
        self.learned: dict[Any, Learning] = {}
        """Node -> what a gradient of its value goes to."""
        self.writers: dict[int, tuple[int, ...]] = {}
        """Storage that was written into -> places of the calls that what is in it comes from."""
        self.relearned: dict[int, Learning] = {}
        """Identity of a tensor that was written into, maybe through a view -> what its gradient goes to."""
        self.learning: list[Learning] = []
        self.calls: list[Call] = []
        self.grown = GrownTasks(network)
        self.elements: dict[int, float] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.returns: dict[int, tuple[Gradient, ...]] = {}
        self.stand_ins: StandIns = {}
        self.convolutions = dict[int, ConvolutionMemory]()
        self.untold = dict[str, None]()
        self.silent = set[int]()
        self.trees = ViewTrees(autograd.values) if autograd else None
        self.bytes = {True: 0, False: 0}
        self.views = 0
        self.results: tuple[int, ...] = ()

    def add(self, node: Any, is_weight: bool, is_trained: bool) -> None:
        self.learned[node] = Learning()
        if node.op == "placeholder":
            if self.autograd:
                self.autograd.give(node, is_trained)
            size = _bytes(node.meta.get("val"))
            self.bytes[is_weight] += size
            self.resident[node] = len(self.resident), size
            self.sources[node] = ()
            if is_trained:
                self.learned[node] = Learning(weights=frozenset((self.resident[node][0],)))
        elif node.op == "output":
            self.results = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self._sources(one)))
        elif node.op == "call_function":
            self._call(node)
        else:
            if self.autograd:
                self.autograd.constant(node)
            self.sources[node] = ()

    def _call(self, node: Any) -> None:
        learning = self._learning(node)
        self._choose(node, learning)
        found = in_products(_calls_of(node), node, self.products)
        before = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in self._sources(one)))
        part = self._part(node)
        saved = self.autograd.run(node) if self.autograd else Saved()
        if self.autograd and not self.autograd.learns(node):  # as zeros_like
            learning = Learning()
        if saved.backward_bytes is None:
            self.untold[str(node.target)] = None
        by_formula = part is None and RETURNS not in node.meta and has_formula(node, found)
        self._read(node, bool(found.operators), RETURNS in node.meta or (by_formula and saved.formula is not None))
        if not found.operators:
            self.views += 1
            self.sources[node], self.learned[node] = before, learning
            if len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in self.resident:
                self.resident[node] = self.resident[node.all_input_nodes[0]]
            self._overwrite(node)
            return
        reads = tuple(dict.fromkeys(self.resident[one] for one in node.all_input_nodes if one in self.resident))
        again = recomputed_in(node)
        results, kept, extra_bytes = self._buffers(saved, len(self.calls) + len(found.operators) - 1)
        copied, product = dict[Any, int](), found.product
        self.places[node.name] = len(self.calls), len(self.calls) + len(found.operators) - 1
        self.convolutions |= self._convolution(node, len(self.calls) + found.product)
        if RETURNS in node.meta:
            self.returns[len(self.calls)] = (Gradient(matrix("copy", node.meta[RETURNS].meta["val"]), "inputs"),)
        whole, own_bytes = learning, written_bytes(node, found)
        for index, operator in enumerate(found.operators):
            self._note(node, found, index)
            is_first, is_last = index == 0, index == len(found.operators) - 1
            if found.reads:
                chain = ((), Learning()) if is_first else (before, learning)
                before, reads, learning = self._read_by(found.reads[index], *chain, whole)
            written = own_bytes[index]
            if is_last:
                is_part = part is not None and part.bytes < sum(one.bytes for one in results)
                written = extra_bytes + (0 if is_part else written)
            place, joined = len(self.calls), found.is_joined and not is_first
            task = self.grown.task(operator)
            held = self.convolutions.get(place, ConvolutionMemory()).forward
            held += found.held_bytes[index] if found.held_bytes else 0
            name = f"{node.name}#{place}"
            self.calls.append(Call(name, task, before, written, reads, workspace_bytes=held, is_joined=joined))
            is_product = index == product and bool(learning.sources or learning.weights)
            own = tuple(self._factor(one, copied) for one in operands_of(node)) if is_product else ()
            copied |= dict.fromkeys(_copied(found, index), place)
            last, made = _last(saved.last, is_first, is_last), results if is_last else ()
            backward = (saved.backward_bytes or 0) if is_last else 0
            if found.silent.issuperset(range(index + 1)):  # such as the calls that make a mask: nothing is learned yet
                self.learning.append(Learning(again=again, last=last, is_stored=saved.is_stored))
                before = (*before, place)
                continue
            self.learning.append(learning._replace(again=again, factors=own, made=made, kept=kept, last=last))
            self.learning[-1] = self.learning[-1]._replace(backward_bytes=backward, is_stored=saved.is_stored)
            if part and len(found.operators) == 1 and (learning.sources or learning.weights):
                self.learning[-1] = self.learning[-1]._replace(part=part)
            before, reads = (place,), ()
            learning = Learning(frozenset(before)) if learning.sources or learning.weights else Learning()
        if by_formula:
            self._with_formula(node, whole, saved)
        self.sources[node], self.learned[node] = before, learning
        self._overwrite(node)
        self._hold(node)

    def _hold(self, node: Any) -> None:
        """Note what a composite operator holds until a node of it has run."""
        places = {self.places[name][1] for name in node.meta.get(HELD, ()) if name in self.places}
        last = self.calls[-1]
        if more := places - {len(self.calls) - 1}:
            self.calls[-1] = replace(last, held=tuple(sorted(more.union(last.held))))

    def _convolution(self, node: Any, place: int) -> dict[int, ConvolutionMemory]:
        """Return what a CPU holds for a node that is trained and whose product is call ``place``: a convolution."""
        is_held = name_of(node) in CONVOLUTIONS and self.place == CPU and self.autograd is not None
        return {place: convolution_memory(node, name_of(node))} if is_held else {}

    def _read(self, node: Any, runs: bool, sums: bool) -> None:
        """Note a node that runs something, or only sees what it reads; none that no gradient comes from.

        ``sums``: its own formula adds the gradients of a tensor that it is given several times.
        """
        if self.trees is None or self.autograd is None:
            return
        if not runs:
            self.trees.view(node)
        elif self.autograd.learns(node):
            self.trees.read(node, sums)

    def views_read(self, trained: Collection[str]) -> tuple[dict[int, ViewTree], dict[tuple[int, int], ViewTree]]:
        """Return how the gradients of results and parameters are made that calls read through views."""
        results, weights = dict[int, ViewTree](), dict[tuple[int, int], ViewTree]()
        if self.trees is None or self.autograd is None:
            return results, weights
        trained_calls = trained_places(self.learning, self.results)
        for base in self.trees.readers:
            if any(number in self.writers for number, _ in self.autograd.storages_of(base)):
                continue
            tree = self.trees.tree(base, lambda reader: trained_calls[self.places[reader.name][1]])
            if base.name in self.places and tree:
                results[self.places[base.name][1]] = tree
            for reader, tree in self.trees.each(base) if base.name in trained else ():
                first, last = self.places[reader.name]
                weights |= {(place, self.resident[base][0]): tree for place in range(first, last + 1)}
        return results, weights

    def _note(self, node: Any, found: Calls, index: int) -> None:
        """Note of the next call, which is one of a node, what is said beside its operator."""
        place, operator = len(self.calls), found.operators[index]
        if found.gradients and (returned := found.gradients[index]) is not None:
            self.returns[place] = returned
        if index in found.silent or _copied(found, index) or (name_of(node) in COPIES and RETURNS not in node.meta):
            self.silent.add(place)
        if operator.elements:
            self.elements[place] = operator.elements
        if found.stands_for:
            self.stand_ins[place] = found.stands_for

    def _read_by(
        self, nodes: Sequence[Any], before: tuple[int, ...], learning: Learning, whole: Learning
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], Learning]:
        """Return the calls and residents that one operator of a node reads, and what its gradient goes to.

        It reads ``nodes`` besides what comes ``before`` it, whose gradient goes to ``learning``.
        """
        found = tuple(dict.fromkeys((*before, *(place for one in nodes for place in self._sources(one)))))
        reads = tuple(dict.fromkeys(self.resident[one] for one in nodes if one in self.resident))
        learned = [self._learned(one) for one in nodes] if whole.sources or whole.weights else []
        return found, reads, together([learning, *learned])

    def _with_formula(self, node: Any, learning: Learning, saved: Saved) -> None:
        """Let the last call of a node have the gradients of all that it is given, made as autograd makes them."""
        if self.autograd is None or saved.formula is None or not (learning.sources or learning.weights):
            return
        for place in range(self.places[node.name][0], len(self.calls) - 1):
            self.learning[place] = self.learning[place]._replace(sources=frozenset(), weights=frozenset())
        arguments = tuple(map(self._factor, self.autograd.tensor_nodes(node)))
        self.learning[-1] = self.learning[-1]._replace(
            sources=learning.sources, weights=learning.weights, formula=saved.formula, arguments=arguments
        )

    def _choose(self, node: Any, learning: Learning) -> None:
        """Choose the kernel of a node that is attention."""
        if name_of(node) == ATTENTION_CALL:
            mask = mask_of(node)
            trains = [
                bool(one.sources or one.weights) for one in (learning, self._learned(mask) if mask else Learning())
            ]
            choose_kernel(node, self.place, self.attention, *(self.autograd is not None and one for one in trains))

    def _sources(self, node: Any) -> tuple[int, ...]:
        """Places of the calls that what is now in the tensors of a node comes from."""
        storages = self.autograd.storages_of(node) if self.autograd else ()
        newest = [place for number, _ in storages for place in self.writers.get(number, ())]
        kept = () if newest and len(storages) == 1 else self.sources[node]
        return tuple(dict.fromkeys((*kept, *newest)))

    def _learned(self, node: Any) -> Learning:
        """Return what the gradient of a node's value goes to now."""
        found = [self.relearned.get(id(one)) for one in self.autograd.wholes_of(node)] if self.autograd else []
        return together([one or self.learned[node] for one in found] or [self.learned[node]])

    def _part(self, node: Any) -> Part | None:
        into = overwritten_by(node)[:1] if has_gradient(node) else []
        if self.autograd is None or not into:
            return None
        (whole,), (value,) = self.autograd.wholes_of(into[0]), tensors_in(self.autograd.values[into[0]])
        if whole is value:
            return None
        others = together([self._learned(one) for one in node.all_input_nodes if one is not into[0]])
        copies = matrix("copy", whole), matrix("copy", value)
        return Part(*copies, _bytes(value), self._learned(into[0]).sources, others.sources)

    def _overwrite(self, node: Any) -> None:
        """Note that what a node writes into comes from it from now on, whichever view it is read through."""
        if self.autograd is None:
            return
        for one in overwritten_by(node):
            for number, is_whole in self.autograd.storages_of(one):
                before = () if is_whole else self._sources(one)
                self.writers[number] = tuple(dict.fromkeys((*before, *self.sources[node])))
            if gradients_on(node):
                self.relearned.update((id(whole), self.learned[node]) for whole in self.autograd.wholes_of(one))

    def _factor(self, node: Any, copied: Mapping[Any, int] = MappingProxyType({})) -> Factor:
        if node in copied:
            return Factor(frozenset((copied[node],)), frozenset())
        learned = self._learned(node)
        return Factor(learned.sources, learned.weights, sum(one.numel() for one in tensors_in(node.meta.get("val"))))

    def _buffers(self, saved: Saved, place: int) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...], int]:
        """Results of a node that ends at ``place``, what autograd keeps, and its bytes that are results of no node."""
        self.owners.update(dict.fromkeys(saved.made, place))
        own = {number: size for number, size in saved.kept.items() if number not in self.owners}
        self.owners.update(dict.fromkeys(own, place))
        made, kept = (
            tuple(Buffer(self.owners[key], key, size) for key, size in one.items()) for one in (saved.made, saved.kept)
        )
        return made, kept, sum(own.values())

    def _learning(self, node: Any) -> Learning:
        """Return what a value learns: nothing if it is made with gradients off, detached, or of whole numbers."""
        if self.autograd is None or not has_gradient(node):
            return Learning()
        return together([self._learned(one) for one in node.all_input_nodes])

    def graph(self) -> NetworkGraph:
        tasks, weights, inputs = self.grown.tasks, self.bytes[True], self.bytes[False]
        return NetworkGraph(self.network, tuple(self.calls), tasks, 0, weights, inputs, self.results, self.views)


def choose_kernel(node: Any, place: str, asked: str, trains: bool = False, mask_trains: bool = False) -> None:
    """Choose the kernel of a node that is attention, as ``aten_attention.choose``; errors name the node."""
    try:
        choose(node, NEWEST if place == "gpu" else place, asked, trains, mask_trains)
    except UnsupportedProgramError as error:
        raise UnsupportedProgramError(f"{error} ({node.name}{place_of_node(node)})") from None


def _calls_of(node: Any) -> Calls:
    """Return the calls of a node, also of a copy that a division of operators put there."""
    return Calls((matrix("copy", node.meta[COPIED].meta["val"]),)) if COPIED in node.meta else calls_of(node)


def written_bytes(node: Any, found: Calls) -> list[int]:
    """Return the bytes that each call of a node writes, but for what autograd keeps; the last writes its result."""
    written = [
        0 if place in found.in_place else int(operator.written_bytes)
        for place, operator in enumerate(found.operators[:-1])
    ]
    in_place = len(found.operators) > 1 and name_of(node) in IN_PLACE
    return [*written, 0 if in_place else sum(map(_bytes, tensors_in(node.meta["val"])))]


def _copied(found: Calls, index: int) -> tuple[Any, ...]:
    """Return the node that an operator of another one copies before its product, if it does."""
    is_copy = bool(found.reads) and index < found.product and len(found.reads[index]) == 1
    return found.reads[index] if is_copy else ()


def _last(last: str, is_first: bool, is_last: bool) -> str:
    """The same as ``Saved.last``, of one call of a node. Within a node that is one call, most has run by then."""
    if last == BEFORE:
        return BEFORE if is_first else ""
    return (AFTER if last == AFTER or is_first else BEFORE) if last and is_last else ""


def _bytes(value: Any) -> int:
    if not hasattr(value, "shape"):
        return 0
    return math.prod(int(size) for size in value.shape) * value.dtype.itemsize
