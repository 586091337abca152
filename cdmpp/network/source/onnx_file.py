"""ONNX files, read and checked: what ``onnx.checker`` refuses, then what it lets through and no importer should see."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.limits import shown
from cdmpp.programs.refusal import first_line, quiet

STANDARD = ("", "ai.onnx")
"""Names of the domain of the standard operators."""
CONTRIBUTED = {"com.microsoft": ("BiasGelu", "FastGelu", "MatMulInteger16", "SkipLayerNormalization")}
"""Domain -> operators of it that TVM imports as that domain defines them."""
OLDEST_OPSET = 7
"""Before it, two operands were of one shape where an attribute said so; TVM does not read that attribute."""
_ADVICE = "export the model again"
_SMALL = 1 << 13
"""Elements: weights of more say nothing about shapes, and are left out where those are inferred."""
_LONGEST_MESSAGE = 1 << 31
"""Bytes: no longer one is a protobuf, so files and weights that are longer cannot be checked whole."""


def weight_files(path: Path) -> list[Path]:
    """List the files beside an ONNX file that hold its weights, as its tensors name them.

    Raises:
        CdmppError: onnx is not installed, or the file cannot be read.
    """
    try:
        import onnx
    except ImportError as error:
        raise CdmppError(f"onnx is not installed ({error}): pip install 'cdmpp[networks]'") from error
    try:
        tensors = onnx.load(path, load_external_data=False).graph.initializer
    except Exception as error:
        raise CdmppError(f"{path} cannot be read as ONNX: {first_line(error)}") from error
    named = {entry.value for one in tensors for entry in one.external_data if entry.key == "location"}
    return [path.parent / name for name in sorted(named)]


def check_whole(file: str, content: bytes) -> None:
    """Raise ``CdmppError`` for bytes of an ONNX file that are none, or that name other files for their weights.

    For files of others, whose weights are theirs to send: not even a name in them is looked up.
    """
    try:
        import onnx
    except ImportError as error:
        raise CdmppError(f"onnx is not installed ({error}): pip install 'cdmpp[networks]'") from error
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise CdmppError(f"{file} cannot be read as ONNX: {first_line(error)}") from error
    if outside := next(_outside(model), None):
        raise CdmppError(
            f"{file}: the weights {shown(outside)} are in another file, and this one has to hold all: save it whole "
            "(onnx.save(..., save_as_external_data=False))"
        )


def _outside(message: Any) -> Iterator[str]:
    """Yield the names of tensors, anywhere in a message, whose values are elsewhere."""
    if type(message).__name__ == "TensorProto" and (message.external_data or message.data_location == 1):
        yield message.name
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if hasattr(value, "append") or hasattr(value, "add") else (value,):
            yield from _outside(inner)


def read_onnx(path: Path) -> Any:
    """Read an ``onnx.ModelProto`` that says what it computes: functions inlined, weights loaded.

    Raises:
        CdmppError: no such file, no ONNX, or a graph that is not valid, of an operator set that onnx does not know, or
            with operators of other domains than the standard one; it names the node.
    """
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.onnx")], n=3, cutoff=0.4)
        raise CdmppError(f"there is no file {path}" + (f"; nearest: {', '.join(near)}" if near else ""))
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise CdmppError(f"onnx is not installed ({error}): pip install 'cdmpp[networks]'") from error
    with quiet():
        try:
            model = onnx.load(path)
        except Exception as error:
            raise CdmppError(f"{path} cannot be read as ONNX: {first_line(error)}") from error
    if not model.graph.node:
        raise CdmppError(f"{path} cannot be read as ONNX: it has no nodes")
    _check_sets(path.name, model)
    with quiet():
        try:
            onnx.checker.check_model(_for_checker(model))
            for tensor in model.graph.initializer:
                if 8 * _SMALL < tensor.ByteSize() < _LONGEST_MESSAGE:
                    onnx.checker.check_tensor(tensor)
            if model.functions:
                model = onnx.inliner.inline_local_functions(model)
        except Exception as error:
            raise _invalid(path.name, error) from error
    _check_graph(path.name, model.graph)
    return model


def infer_types(file: str, model: Any) -> dict[str, Any]:
    """Return the ``TypeProto`` of values by name, as the file declares or ``onnx.shape_inference`` finds them.

    Raises:
        CdmppError: the declared and the inferred type or shape of a value differ, or operands do not fit.
    """
    import onnx

    with quiet():
        try:
            light = _without_weights(model)
            known = onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True).graph
        except Exception as error:
            raise _invalid(file, error) from error
    return {value.name: value.type for value in (*known.input, *known.value_info, *known.output)}


def type_of(described: Any) -> tuple[list[int | None] | None, str] | None:
    """Return ``(sizes, dtype)`` of a tensor's ``TypeProto``; None for sizes that it leaves open, and other types."""
    from onnx import helper

    if described.WhichOneof("value") != "tensor_type" or not described.tensor_type.elem_type:
        return None
    tensor = described.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return sizes if tensor.HasField("shape") else None, str(helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)


def node_name(node: Any) -> str:
    """Return the name of a node, or that of what it writes."""
    return str(node.name or next(filter(None, node.output), "?"))


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of the graph and of the graphs in its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from nodes_of(inner)


def _without_weights(model: Any) -> Any:
    """The model, its large weights as inputs of their type."""
    import onnx
    from onnx import helper

    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    graph, given = light.graph, model.graph
    graph.name = given.name
    graph.node.extend(given.node)
    graph.input.extend(given.input)
    graph.output.extend(given.output)
    graph.value_info.extend(given.value_info)
    graph.sparse_initializer.extend(given.sparse_initializer)
    light.functions.extend(model.functions)
    listed = {value.name for value in given.input}  # files of before 2019 list weights as inputs, too
    for tensor in given.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def _for_checker(model: Any) -> Any:
    """Return the model ``_without_weights``, for a checker.

    Inputs without a shape and results without a type, which are no faults here, get one.
    """
    light = _without_weights(model)
    for value in light.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = 1
    for value in (*light.graph.input, *light.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    return light


def _invalid(file: str, error: Exception) -> CdmppError:
    told = " ".join(str(error).replace("==> Context:", " in:").split())
    told = told.removeprefix("[ShapeInferenceError] ").removeprefix("Inference error(s): ")
    return CdmppError(f"{file} is no valid ONNX: {told[:400].rstrip('. ')}. {_ADVICE[0].upper()}{_ADVICE[1:]}")


def _check_sets(file: str, model: Any) -> None:
    import onnx

    sets = [(one.domain if one.domain not in STANDARD else "", one.version) for one in model.opset_import]
    counts = Counter(domain for domain, _ in sets)
    if twice := [domain or "ai.onnx" for domain, count in counts.items() if count > 1]:
        raise CdmppError(f"{file} imports operator sets of the domain {twice[0]} twice; {_ADVICE} with one of them")
    version, newest = dict(sets).get(""), onnx.defs.onnx_opset_version()
    if version is not None and not OLDEST_OPSET <= version <= newest:
        raise CdmppError(
            f"{file} is of operator set {version}: sets {OLDEST_OPSET} to {newest} can be read (onnx "
            f"{onnx.__version__}); {_ADVICE} with one of them, such as opset_version=18"
        )


def _check_graph(file: str, graph: Any) -> None:
    for node in nodes_of(graph):
        if node.domain not in STANDARD and node.op_type not in CONTRIBUTED.get(node.domain, ()):
            raise CdmppError(
                f"{file}: the operator {node.op_type} (node {node_name(node)}) is of the domain {node.domain}, whose "
                "operators are not known here, whatever their names: only those of the standard (ai.onnx) are; "
                f"replace it by these, or {_ADVICE} with it as a function of the file"
            )
    if not graph.output:
        raise CdmppError(f"{file} has no outputs, so nothing says what it is to compute: {_ADVICE}")
    if graph.sparse_initializer:
        raise CdmppError(f"{file} has sparse weights ({graph.sparse_initializer[0].values.name}): make them dense")
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if bad := [dim.dim_value for dim in dims if dim.HasField("dim_value") and dim.dim_value < 1]:
            raise CdmppError(
                f"{file}: the input {value.name} has the dimension {bad[0]}; sizes are at least 1, and an open "
                f"dimension has a name instead: {_ADVICE} with either"
            )
