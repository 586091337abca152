"""ONNX files as exporters write them: open dimensions by name, external weights, QDQ, operator sets 13 to 24."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.graph import graph_of
from cdmpp.network.source.read import read_network
from cdmpp.network.workload import Workload

onnx = pytest.importorskip("onnx")
pytest.importorskip("tvm")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.network.source.quantised_product import quantised_product  # noqa: E402

WEIGHT = np.random.default_rng(0).random((16, 32)).astype(np.float32)
MATMUL = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]


def saved(path, nodes, x, y, weights=(("w", WEIGHT),), opset=18, **options):
    """A file with one input and one result of these shapes; a text is the name of an open dimension."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", x), ("y", y))]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(made, path, **options)
    return path


def dynamic(tmp_path):
    return saved(tmp_path / "open.onnx", MATMUL, ["batch", "seq", 16], ["batch", "seq", 32])


@pytest.mark.parametrize(
    "sizes",
    [
        {"inputs": {"batch": (2,), "seq": (8,)}},
        {"inputs": {"seq": (8,)}, "batch": 2},
        {"inputs": {"x": (2, 8, 16)}},
    ],
)
def test_open_dimensions_have_sizes_by_name_or_by_input(tmp_path, sizes):
    found = read_network(Workload(dynamic(tmp_path), **sizes))
    graph = graph_of(found.module, "open")
    assert found.batch == 2 and graph.input_bytes == 4 * 2 * 8 * 16
    assert sum(graph.tasks[call.task_id].flops for call in graph.calls) == pytest.approx(2 * 16 * 16 * 32, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"inputs": {"seq": (8,)}}, r"open dimensions, \[batch, 8, 16\].*--input batch=16"),
        ({"inputs": {"sqe": (8,)}}, "has no input sqe.*no open dimension, but batch, seq; did you mean seq"),
        ({"inputs": {"seq": (8, 4)}}, "seq is an open dimension: give one size"),
        ({"inputs": {"seq": (8,), "x": (2, 4, 16)}}, "seq is 8 elsewhere, but 4 in x"),
        ({"inputs": {"batch": (3,), "seq": (8,)}, "batch": 2}, "batch is 3 elsewhere, but 2 in x"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path, sizes, told):
    with pytest.raises(CdmppError, match=told):
        read_network(Workload(dynamic(tmp_path), **sizes))


def test_external_weights_are_read_or_missed_by_name(tmp_path):
    options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    path = saved(tmp_path / "apart.onnx", MATMUL, [2, 16], [2, 32], **options)
    assert (tmp_path / "w.data").stat().st_size >= WEIGHT.nbytes
    graph = graph_of(read_network(Workload(path)).module, "apart")
    assert graph.weight_bytes == WEIGHT.nbytes
    (tmp_path / "w.data").unlink()
    with pytest.raises(CdmppError, match="apart.onnx cannot be read as ONNX.*w.data"):
        read_network(Workload(path))


@pytest.mark.parametrize("opset", range(13, 25))
def test_operator_sets_are_read(tmp_path, opset):
    axes = [("axes", np.array([-1], np.int64))] if opset >= 18 else []
    mean = {} if axes else {"axes": [-1]}
    nodes = [
        MATMUL[0],
        helper.make_node("Softmax", ["h"], ["s"], axis=-1),
        helper.make_node("ReduceMean", ["s", *("axes" for _ in axes)], ["y"], keepdims=1, **mean),
    ]
    path = saved(tmp_path / "set.onnx", nodes, [2, 16], [2, 1], [("w", WEIGHT), *axes], opset)
    graph = graph_of(read_network(Workload(path)).module, "set")
    assert sum(graph.tasks[call.task_id].flops for call in graph.calls) > 2 * 2 * 16 * 32


def test_quantise_and_dequantise_are_read_with_weights_of_a_byte(tmp_path):
    nodes, weights = quantised_product(WEIGHT)
    graph = graph_of(
        read_network(Workload(saved(tmp_path / "qdq.onnx", nodes, [2, 16], [2, 32], weights))).module, "qdq"
    )
    assert graph.weight_bytes == sum(value.nbytes for _, value in weights)
    assert sum(graph.tasks[call.task_id].flops for call in graph.calls) >= 2 * 2 * 16 * 32
