"""Cases of ONNX: the test vectors of the standard, the same nodes under older operator sets, and old forms of nodes."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.importers.case import Case
from benchmarks.importers.onnx_forms import forms

OLDER = (18, 16, 13, 12, 11, 10, 9, 8, 7)
"""Operator sets under which a test vector is tried again where TVM or the standard has another definition there."""


def onnx_cases(done: Container[str] = ()) -> Iterator[Case]:
    """Forms of nodes of our own, then every test vector of the standard whose operators TVM converts.

    ``done`` are keys of cases that are left out.
    """
    from onnx.backend.test.loader import load_model_tests

    for name, model, given in forms():
        if f"onnx/{name}" not in done and (expected := _by_onnxruntime(model, given)) is not None:
            yield _case(name, model, given, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vectors = load_model_tests(kind="node")
    for vector in vectors:
        model, (given, expected) = vector.model, vector.data_sets[0]
        if "_expanded" in vector.name or not _converted(model):
            continue
        name = vector.name.removeprefix("test_")
        if not all(isinstance(value, np.ndarray | np.generic | onnx.TensorProto) for value in (*given, *expected)):
            continue  # sequences and optionals, which no network predicted here returns
        given, expected = [_array(value) for value in given], [_array(value) for value in expected]
        yield _case(name, model, given, expected, vector.rtol, max(vector.atol, 1e-5))
        if places := _sizes_among(model, given):
            frozen, left = _frozen(model, given, places)
            yield _case(f"{name}+constants", frozen, left, expected, vector.rtol, max(vector.atol, 1e-5))
            model, given = frozen, left
        yield from _older(name, model, given, done)


def setting(model: Any, given: list[np.ndarray]) -> str:
    """The nodes' attributes, the types and shapes of inputs and weights, and the operator set."""
    attributes = [
        f"{one.name}={_shown(helper.get_attribute_value(one))}" for node in model.graph.node for one in node.attribute
    ]
    inputs = [f"{value.dtype}{list(value.shape)}" for value in given]
    weights = [
        f"{tensor.name}={numpy_helper.to_array(tensor).tolist()}"
        for tensor in model.graph.initializer
        if np.prod(tensor.dims) <= 8 and tensor.data_type in (6, 7, 9)
    ]
    return ", ".join([*attributes, *inputs, *weights, f"opset {opset_of(model)}"])


def opset_of(model: Any) -> int:
    """Version of the standard operators that it imports."""
    return max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1)


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{type(value).__name__}" if hasattr(value, "SerializeToString") else str(value).replace("\n", " ")


def _case(
    name: str, model: Any, given: list[np.ndarray], expected: list[np.ndarray], rtol: float = 1e-3, atol: float = 1e-4
) -> Case:
    operators = tuple(dict.fromkeys(node.op_type for node in model.graph.node))
    return Case("onnx", name, operators, setting(model, given), model, tuple(given), tuple(expected), rtol, atol)


def _converted(model: Any) -> bool:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = _get_convert_map()
    return all(node.domain in ("", "ai.onnx") and node.op_type in known for node in model.graph.node)


def _sizes_among(model: Any, given: list[np.ndarray]) -> list[int]:
    """Places of inputs that files hold as constants: small ones of integers or booleans, and scalars; not the first."""
    return [
        place
        for place, value in enumerate(given)
        if place and value.ndim <= 1 and (value.dtype.kind in "iub" or value.ndim == 0 or value.size <= 8)
    ]


def _frozen(model: Any, given: list[np.ndarray], places: list[int]) -> tuple[Any, list[np.ndarray]]:
    """The model with these inputs as initializers, and the inputs that are left."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = [value.name for value in model.graph.input]
    for place in places:
        made.graph.initializer.append(numpy_helper.from_array(given[place], names[place]))
    kept = [value for place, value in enumerate(model.graph.input) if place not in places]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made, [value for place, value in enumerate(given) if place not in places]


def _older(name: str, model: Any, given: list[np.ndarray], done: Container[str]) -> Iterator[Case]:
    """The same node under older operator sets, one for each pair of definitions of the standard and of TVM."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    if len(model.graph.node) != 1:
        return
    operator, newest = model.graph.node[0].op_type, opset_of(model)
    converter, seen = _get_convert_map()[operator], set()

    def definitions(version: int) -> tuple[int, int]:
        versions = [int(one.removeprefix("_impl_v")) for one in dir(converter) if one.startswith("_impl_v")]
        schema = onnx.defs.get_schema(operator, version, "").since_version
        return schema, max((one for one in versions if one <= version), default=0)

    seen.add(definitions(newest))
    for version in OLDER:
        try:
            if version >= newest or (found := definitions(version)) in seen or not found[1]:
                continue
            made = onnx.ModelProto()
            made.CopyFrom(model)
            del made.opset_import[:]
            made.opset_import.append(helper.make_opsetid("", version))
            made.ir_version = 8
            onnx.checker.check_model(made, full_check=True)
        except Exception:  # no such operator, or another form of it, in that set
            continue
        seen.add(found)
        if f"onnx/{name}+opset{version}" not in done and (expected := _by_onnxruntime(made, given)) is not None:
            yield _case(f"{name}+opset{version}", made, given, expected)


def _by_onnxruntime(model: Any, given: list[np.ndarray]) -> list[np.ndarray] | None:
    """Return what ONNX Runtime computes; None where it refuses the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        found = session.run(None, dict(zip(names, given, strict=True)))
    except Exception:
        return None
    return [np.asarray(value) for value in found]
