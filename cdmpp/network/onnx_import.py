"""TVM's importer of ONNX, every value of which is compared with what the file says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.onnx_file import STANDARD, node_name, type_of
from cdmpp.programs.declared import Declared


def imported(file: str, model: Any, types: Mapping[str, Any]) -> Any:
    """Relax module of a checked model whose sizes are all known; weights are inputs, after the others.

    ``types`` has the ``TypeProto`` of each value, by name. TVM keeps what it makes of a value under the same name.

    Raises:
        CdmppError: a value has another shape or type than ``types`` says; it names the node, the operator and both.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    importer = ONNXGraphImporter({}, "float32", keep_params_in_input=True)
    importer._nodes = _Values(file, model.graph, types)
    versions = [one.version for one in model.opset_import if one.domain in STANDARD]
    try:
        return importer.from_onnx(model.graph, versions[0] if versions else 1)
    except Exception:
        importer.bb = None  # dies here, where nobody hears that it complains
        raise


class _Values(dict[str, Any]):
    """Name of a value of the graph -> Relax expression; none that anything reads is another than the file says."""

    def __init__(self, file: str, graph: Any, types: Mapping[str, Any]) -> None:
        super().__init__()
        self.file, self.types = file, types
        self.writers = {name: node for node in graph.node for name in node.output}
        inner = (one for node in graph.node for one in node.attribute if one.HasField("g"))
        self.read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        self.read |= {name for one in inner for node in one.g.node for name in node.input}

    def __setitem__(self, name: str, value: Any) -> None:
        known = type_of(self.types[name]) if name in self.types and name in self.read else None
        if fault := Declared(*(known or (None, ""))).fault(value):
            raise CdmppError(f"{self.file}: {self._place(name)} {fault}")
        super().__setitem__(name, value)

    def _place(self, name: str) -> str:
        if name not in self.writers:
            return f"the input or weight {name}"
        node = self.writers[name]
        return f"{name}, which the ONNX operator {node.op_type} (node {node_name(node)}) makes,"
