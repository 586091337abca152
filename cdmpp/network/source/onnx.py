"""ONNX files as Relax modules, by TVM's importer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError, some
from cdmpp.network.source.onnx_file import infer_types, node_name
from cdmpp.network.source.onnx_import import imported
from cdmpp.network.source.onnx_sizes import read_sized
from cdmpp.programs.refusal import first_line, node_at_fault, quiet


def relax_of_onnx(path: Path, batch: int | None, inputs: Mapping[str, Sequence[int]] | None) -> Any:
    """Import a file as a Relax module, not legalised; weights are inputs after the others, and attribute ``params``.

    Raises:
        CdmppError: no such file, no ONNX, an open dimension that neither ``inputs`` (shapes by name) nor ``batch``
            sets, or an operator that TVM does not import.
    """
    model = read_sized(path, batch, inputs)
    _rename_weights(model.graph)
    types = infer_types(path.name, model)
    with quiet():
        try:
            return imported(path.name, model, types)
        except CdmppError as error:
            refusal = error.with_traceback(None)
        except Exception as error:
            refusal = _refusal(path.name, model.graph, error)
    raise refusal  # here: what its trace would hold alive complains when it dies


def _rename_weights(graph: Any) -> None:
    """Names such as ``0.weight`` would become parameters that TVM prints, but cannot read."""
    names = {tensor.name: f"weight_{place}" for place, tensor in enumerate(graph.initializer)}
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    for value in (*graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)


def _refusal(file: str, graph: Any, error: Exception) -> CdmppError:
    advice = "replace it before exporting, or predict the network without the part that it belongs to"
    if missing := re.search(r"not supported for frontend ONNX: (.+)", str(error)):
        operators = sorted(missing.group(1).split(", "))
        nodes = {name: [node_name(n) for n in graph.node if n.op_type == name] for name in operators}
        told = [f"{name} (node {some(nodes[name], ', ', 3)})" for name in operators]
        return CdmppError(f"{file}: TVM cannot import the ONNX operator {', '.join(told)}: {advice}")
    node = node_at_fault(error, "op_type")
    if node is None:
        return CdmppError(f"{file}: TVM cannot import it: {first_line(error)}")
    return CdmppError(
        f"{file}: TVM cannot import the ONNX operator {node.op_type} (node {node_name(node)}): {first_line(error)}. "
        f"{advice[0].upper()}{advice[1:]}"
    )
