"""TVM's importer of ONNX, every value of which is compared with what the file says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.source.onnx_file import STANDARD, node_name, type_of
from cdmpp.programs.declared import ADVICE, Declared
from cdmpp.programs.known_faults import refused_fault

_SMALL = 64
"""Elements of a constant from which an operator's setting may be read."""


def imported(file: str, model: Any, types: Mapping[str, Any]) -> Any:
    """Import a checked model whose sizes are all known as a Relax module; weights are inputs, after the others.

    ``types`` has the ``TypeProto`` of each value, by name. TVM keeps what it makes of a value under the same name.

    Raises:
        CdmppError: a value has another shape or type than ``types`` says; it names the node, the operator and both.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    importer = ONNXGraphImporter({}, "float32", keep_params_in_input=True)
    opset = next((one.version for one in model.opset_import if one.domain in STANDARD), 1)
    importer._nodes = _Values(file, model.graph, types, opset)
    try:
        return importer.from_onnx(model.graph, opset)
    except Exception:
        importer.bb = None  # dies here, where nobody hears that it complains
        raise


class _Values(dict[str, Any]):
    """Name of a value of the graph -> Relax expression; none that anything reads is another than the file says."""

    def __init__(self, file: str, graph: Any, types: Mapping[str, Any], opset: int) -> None:
        super().__init__()
        self.file, self.types, self.opset = file, types, opset
        self.constants = _constants(graph)
        self.writers = {name: node for node in graph.node for name in node.output}
        inner = (one for node in graph.node for one in node.attribute if one.HasField("g"))
        self.read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        self.read |= {name for one in inner for node in one.g.node for name in node.input}

    def __setitem__(self, name: str, value: Any) -> None:
        known = self._type(name) if name in self.read else None
        if (node := self.writers.get(name)) and (fault := refused_fault("onnx", node.op_type, self._facts(node))):
            named = f"the ONNX operator {node.op_type} (node {node_name(node)})"
            raise CdmppError(f"{self.file}: {named} {fault}. {ADVICE[0].upper()}{ADVICE[1:]}")
        if fault := Declared(*(known or (None, ""))).fault(value):
            raise CdmppError(f"{self.file}: {self._place(name)} {fault}")
        super().__setitem__(name, value)

    def _type(self, name: str) -> tuple[list[int | None] | None, str] | None:
        return type_of(self.types[name]) if name in self.types else None

    def _facts(self, node: Any) -> dict[str, Any]:
        """Attributes and defaults; ``input1`` ... (constants or ``varies``); types of the first input and result."""
        import onnx

        schema = onnx.defs.get_schema(node.op_type, self.opset, "") if node.domain in STANDARD else None
        found = {name: _plain(one.default_value) for name, one in (schema.attributes if schema else {}).items()}
        found |= {one.name: _plain(one) for one in node.attribute}
        found |= {f"input{i}": self.constants.get(name, "varies") for i, name in enumerate(node.input) if name}
        found |= {"opset": self.opset, "inputs": sum(map(bool, node.input)), "outputs": len(node.output)}
        if node.input and (first := self._type(node.input[0])):
            found |= {"shape": first[0], "rank": None if first[0] is None else len(first[0]), "dtype": first[1]}
        if node.output and (made := self._type(node.output[0])):
            found["made"] = made[1]
        return found

    def _place(self, name: str) -> str:
        if name not in self.writers:
            return f"the input or weight {name}"
        node = self.writers[name]
        return f"{name}, which the ONNX operator {node.op_type} (node {node_name(node)}) makes,"


def _constants(graph: Any) -> dict[str, Any]:
    """Name -> value of the small constants of a graph, as numbers and lists."""
    from onnx import numpy_helper

    made = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            made[node.output[0]] = node.attribute[0].t
    small = {name: tensor for name, tensor in made.items() if math.prod(tensor.dims) <= _SMALL}
    return {name: numpy_helper.to_array(tensor).tolist() for name, tensor in small.items()}


def _plain(attribute: Any) -> Any:
    from onnx import helper

    if not attribute.type:
        return None
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
