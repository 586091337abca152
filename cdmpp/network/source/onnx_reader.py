"""ONNX files as torch modules: sizes, constants and branches are settled while a file is read. Needs no TVM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from cdmpp.errors import CdmppError
from cdmpp.network.source.onnx_file import infer_types, node_name, nodes_of
from cdmpp.network.source.onnx_known import computed, is_known, sizes_of
from cdmpp.network.source.onnx_loops import unrolled
from cdmpp.network.source.onnx_module import OnnxCall, OnnxModule, Step, TensorGiven
from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule
from cdmpp.network.source.onnx_ops.quantised import PACKED_OPERATORS, PACKED_TYPES, Packed, pack, packed_type
from cdmpp.network.source.onnx_ops.table import RULES
from cdmpp.network.source.onnx_sizes import read_sized
from cdmpp.network.source.onnx_types import torch_tensor, torch_type
from cdmpp.programs.refusal import first_line, quiet
from cdmpp.programs.selections import selections_kept

_STATISTICS: dict[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
}
_STATISTICS |= dict.fromkeys(("QLinearConv", "QLinearMatMul"), (1, 2, 4, 5, 6, 7))
"""Operator -> places of weights that no training changes."""


def module_of_onnx(
    path: Path, batch: int | None, inputs: Mapping[str, Sequence[int]] | None, boxes: int | None = None
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Read a file as a module in eval mode, with inputs that it runs on.

    ``boxes``: elements that each selection by value keeps, as of ``Workload``.

    Raises:
        CdmppError: as of ``read_sized``, or an operator that PyTorch has not, or that is not known; it names the node.
    """
    model = read_sized(path, batch, inputs)
    reader = _Reader(path.name, model, infer_types(path.name, model))
    try:
        with quiet(), selections_kept(boxes, set()):
            return reader.module().eval(), tuple(map(reader.example, model.graph.input))
    except CdmppError as error:
        raise CdmppError(f"{path.name}: {error}") from None


class _Reader:
    """It runs a graph on tensors without values, to learn every size, and keeps what is left to run."""

    def __init__(self, file: str, model: Any, types: Mapping[str, Any]) -> None:
        self.file, self.graph, self.types = file, model.graph, types
        self.sets = {one.domain if one.domain != "ai.onnx" else "": one.version for one in model.opset_import}
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.made = OnnxModule([value.name for value in model.graph.input])
        self.values: dict[str, Any] = {}
        """Name -> an array of what is known, or a tensor without values."""
        self.weights: dict[str, Any] = {}
        """Name -> ``TensorProto`` of a weight."""
        self.wanted: set[str] = set()
        """Names of values that something reads."""
        self.fixed: set[str] = set()
        """Names of weights that no training changes."""
        self.packed: dict[str, Packed] = {}
        """Name of a value of few bits -> how it lies in bytes."""

    def module(self) -> OnnxModule:
        for value in self.graph.input:
            with self.mode:
                self.values[value.name] = torch.empty_like(self.example(value))
        self._run(self.graph)
        names = [value.name for value in self.graph.output]
        for name in names:
            if name in self.packed:
                _refuse_input(
                    name, f"is a result of {self.packed[name].bits} bits, with which PyTorch computes nothing"
                )
            self._tensor(name)
        self.made.results = tuple(names)
        return self.made

    def example(self, value: Any) -> torch.Tensor:
        """Make an input of the file: random floats, zeros and ones."""
        described = value.type.tensor_type
        sizes = [dim.dim_value for dim in described.shape.dim]
        kind = torch_type(described.elem_type, lambda why: _refuse_input(value.name, why))
        return torch.randn(sizes).to(kind) if kind.is_floating_point else torch.ones(sizes).to(kind)

    def _run(self, graph: Any) -> None:
        from onnx import numpy_helper

        self.weights |= {tensor.name: tensor for tensor in graph.initializer}
        self.wanted |= {value.name for value in graph.output} | {
            name for node in nodes_of(graph) for name in node.input
        }
        for node in graph.node:
            self.fixed |= {node.input[i] for i in _STATISTICS.get(node.op_type, ()) if i < len(node.input)}
        for tensor in graph.initializer:
            self.values[tensor.name] = self._weight(tensor.name, numpy_helper.to_array(tensor), tensor.data_type)
        for node in graph.node:
            self._node(node)

    def _weight(self, name: str, array: Any, number: int) -> Any:
        """Return a weight as it lies in memory: values of few bits as bytes."""
        if number not in PACKED_TYPES:
            return array
        array = array.astype(np.int8)
        if (one := packed_type(number, array.shape)) is None:
            return array
        self.packed[name] = one
        return pack(torch.from_numpy(array), one).numpy()

    def _node(self, proto: Any) -> None:
        if proto.op_type == "If":
            return self._branch(proto)
        if proto.op_type == "Loop":
            return self._loop(proto)
        node = self._described(proto)
        given = [self.values.get(name) if name else None for name in proto.input]
        if proto.op_type in ("Shape", "Size"):
            found: list[Any] | None = [sizes_of(proto, given[0], node["start"] or 0, node["end"])]
        elif proto.op_type == "Constant":
            found = [self._constant(proto, node)]
        else:
            learned = (name in self.weights and _is_weight(self.values[name]) for name in proto.input)
            few = node.packed or node.packed_result
            found = None if few or any(learned) else computed(proto, given, self.sets.get("", 1))
        if found is None:
            found = self._call(proto, node, given)
        self.values.update((name, one) for name, one in zip(proto.output, found, strict=False) if name)
        return None

    def _call(self, proto: Any, node: OnnxNode, given: list[Any]) -> list[Any]:
        """Run a node on tensors without values, and let the module run it."""
        rule = RULES.get(proto.op_type)
        if rule is None:
            node.refuse("is none that is known here as PyTorch's own")
        if node.packed and proto.op_type not in PACKED_OPERATORS:
            bits = next(iter(node.packed.values())).bits
            node.refuse(f"reads numbers of {bits} bits, which PyTorch makes whole ones of by DequantizeLinear alone")
        layer = self._layer(rule, node, proto) if rule.layer else None
        template, names = list[Any](), list[str]()
        for place, (name, one) in enumerate(zip(proto.input, given, strict=True)):
            is_plain = one is None or (place in rule.known and isinstance(one, np.ndarray))
            if is_plain or (layer is not None and place in (1, 2, 3)):
                template.append(one if is_plain else None)
            else:
                template.append(TensorGiven)
                names.append(name)
        call = OnnxCall(rule, node, template, layer)
        try:
            tensors = [self._tensor(name) for name in names]
            with self.mode, torch.no_grad():
                found = call(*tensors)
        except CdmppError:
            raise
        except DynamicOutputShapeException:
            node.refuse("selects by the values of a tensor, and nobody says how many it keeps (boxes, --boxes)")
        except Exception as error:
            node.refuse(f"does not run in PyTorch ({first_line(error)})")
        node.all_read()
        own = self._safe(self.made.nodes, node.name)
        self.made.nodes[own] = call
        self.made.steps.append(Step(own, tuple(names), tuple(proto.output)))
        return list(found)

    def _layer(self, rule: Rule, node: OnnxNode, proto: Any) -> nn.Module:
        names = [name for name in proto.input[1:4] if name]
        if not all(name in self.weights for name in names):
            node.refuse("has weights that the network computes")
        assert rule.layer is not None
        return rule.layer(node, *(torch_tensor(self.values[one], node.refuse) for one in names))

    def _loop(self, proto: Any) -> None:
        """Read a loop as its rounds, one after the other, where their number is known before anything runs."""
        for name in proto.input[:2]:
            if name and not is_known(self.values.get(name)):
                self._described(proto).refuse("runs as often as the values of a tensor say, which only a run knows")
        limit, condition = (self.values[name] if name else None for name in (*proto.input, "", "")[:2])
        rounds = unrolled(proto, limit, condition, self._described(proto).refuse)
        for one in rounds:
            self.values |= {one.number: np.array(one.place, np.int64), one.goes: np.array(True)}
            for name, given in one.given:
                self._named(proto, name, given)
            self._run(one.graph)
            going = self.values[one.condition]
            if not isinstance(going, np.ndarray):
                self._described(proto).refuse("ends by the values of a tensor, which only a run knows")
            one.goes_on(bool(going.reshape(-1)[0]))
        for name, given in rounds.results:
            self._named(proto, name, given)
        for name, parts in rounds.gathered:
            self._gathered(proto, name, parts)

    def _gathered(self, proto: Any, name: str, parts: Sequence[str]) -> None:
        """Stack what each round of a loop gives."""
        own = self._safe(self.made.nodes, name)
        call = OnnxCall(
            Rule(lambda _, *given: torch.stack(given)), self._described(proto), (TensorGiven,) * len(parts), None
        )
        with self.mode:
            (self.values[name],) = call(*map(self._tensor, parts))
        self.made.nodes[own] = call
        self.made.steps.append(Step(own, tuple(parts), (name,)))

    def _named(self, proto: Any, name: str, inner: str) -> None:
        """Let a value have a second name."""
        self.values[name] = self.values[inner]
        if inner in self.packed:
            self.packed[name] = self.packed[inner]
        if not isinstance(self.values[name], np.ndarray):
            own = self._safe(self.made.nodes, f"{node_name(proto)}_{name}")
            self.made.nodes[own] = OnnxCall(RULES["Identity"], self._described(proto), (TensorGiven,), None)
            self.made.steps.append(Step(own, (inner,), (name,)))
        elif inner in self.weights:
            self.weights[name] = self.weights[inner]

    def _branch(self, proto: Any) -> None:
        """Read the branch that is taken, where that is known before anything runs."""
        condition = self.values.get(proto.input[0])
        if condition is None or not is_known(condition):
            self._described(proto).refuse("chooses a branch by the values of a tensor, which only a run knows")
        wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        branch = next(one.g for one in proto.attribute if one.name == wanted)
        self._run(branch)
        for name, inner in zip(proto.output, branch.output, strict=True):
            self._named(proto, name, inner.name)

    def _tensor(self, name: str) -> Any:
        """Return a value as a tensor without values; a known one becomes a parameter or a buffer."""
        value = self.values[name]
        if not isinstance(value, np.ndarray):
            return value
        if name not in self.made.held:
            own = self._safe(self.made, name)
            is_weight = name in self.weights and name not in self.fixed
            tensor = torch_tensor(value, lambda why: _refuse_input(name, why))
            if is_weight and tensor.is_floating_point() and tensor.dim():
                self.made.register_parameter(own, nn.Parameter(tensor))
            else:
                self.made.register_buffer(own, tensor)
            self.made.held[name] = own
        with self.mode:
            real = getattr(self.made, self.made.held[name])
            return torch.empty(real.shape, dtype=real.dtype)

    def _described(self, proto: Any) -> OnnxNode:
        import onnx

        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = self.sets.get(domain, 1)
        own = {one.name: _plain(one) for one in proto.attribute}
        try:
            schema = onnx.defs.get_schema(proto.op_type, opset, domain)
        except onnx.defs.SchemaError:
            defaults: dict[str, Any] = {}
        else:
            defaults = {name: _plain(one.default_value) for name, one in schema.attributes.items()}
        read = tuple(name in self.wanted for name in proto.output)
        weights = frozenset(place for place, name in enumerate(proto.input) if name in self.weights)
        packed = {place: self.packed[name] for place, name in enumerate(proto.input) if name in self.packed}
        result = self._packed_result(proto)
        changed = frozenset(name for name, one in own.items() if not _is_equal(one, defaults.get(name)))
        return OnnxNode(
            proto.op_type, node_name(proto), {**defaults, **own}, opset, read, weights, changed, packed, result
        )

    def _packed_result(self, proto: Any) -> Packed | None:
        """Return how the result of few bits of a node that quantises lies in bytes."""
        described = self.types.get(next(iter(proto.output), ""))
        if proto.op_type != "QuantizeLinear" or described is None:
            return None
        found = packed_type(described.tensor_type.elem_type, self.values[proto.input[0]].shape)
        if found is not None:
            self.packed[proto.output[0]] = found
        return found

    def _constant(self, proto: Any, node: OnnxNode) -> Any:
        if node["value"] is not None:
            return node["value"]
        given = next(one for one in proto.attribute)
        kind = np.float32 if "float" in given.name else np.int64
        if "string" in given.name or given.name == "sparse_value":
            node.refuse(f"has a {given.name}")
        return np.array(node[given.name], kind)

    @staticmethod
    def _safe(taken: Any, name: str) -> str:
        """Return a name that a module can have, and that nothing else of it has."""
        own = re.sub(r"\W", "_", name.strip("/")) or "node"
        while own in taken or hasattr(taken, own) if isinstance(taken, nn.ModuleDict) else hasattr(taken, own):
            own += "_"
        return own


def _plain(attribute: Any) -> Any:
    """Return the value of an ``AttributeProto``: numbers, lists, texts, arrays; None where it has none."""
    from onnx import TensorProto, helper, numpy_helper

    if not attribute.type:
        return None
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return (
        [one.decode(errors="replace") if isinstance(one, bytes) else one for one in value]
        if isinstance(value, list)
        else value
    )


def _is_equal(one: Any, other: Any) -> bool:
    return other is not None and np.array_equal(one, other)


def _is_weight(array: Any) -> bool:
    """Return True for floats along an axis, which are no arithmetic of sizes."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.dtype.kind not in "iub"


def _refuse_input(name: str, why: str) -> Any:
    raise CdmppError(f"{name} {why}")
