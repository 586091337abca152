"""ONNX files: open dimensions are given or refused, the numbers are those of the model, operators are named."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import CdmppError

torch = pytest.importorskip("torch")
tvm = pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.tvm

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source import read_network  # noqa: E402


def write(path, nodes, inputs, output, weights=(), functions=()):
    """A file of nodes; ``inputs``: name -> shape, with texts for what is open."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights]
    graph = helper.make_graph(nodes, "g", values, result, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9), path)
    return path


@pytest.fixture
def product(tmp_path):
    """Of an open batch."""
    weight = np.ones((16, 8), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    return write(tmp_path / "product.onnx", nodes, {"x": ["batch", 16]}, "z", [("w", weight)])


def test_an_exported_model_computes_what_torch_does(tmp_path):
    pytest.importorskip("onnxscript")
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10)).eval()
    x = torch.randn(1, 3, 12, 12)
    path = tmp_path / "small.onnx"
    torch.onnx.export(model, (x,), str(path), dynamo=True, verbose=False)
    source = read_network(str(path))
    assert (source.name, source.batch, source.torch_model) == ("small.onnx", 1, None)
    graph = graph_of(source.module, source.name)
    assert 2 <= len(graph.calls) <= 5 and graph.weight_bytes > 800 * 10 * 4
    weights = list(from_onnx(onnx.load(path), keep_params_in_input=True)["main"].attrs["params"])
    assert len(source.module["main"].params) == 1 + len(weights)
    machine = relax.VirtualMachine(tvm.compile(source.module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x.numpy()), *weights)
    found = found if hasattr(found, "numpy") else found[0]
    np.testing.assert_allclose(found.numpy(), model(x).detach().numpy(), atol=1e-3)


def test_open_dimensions_are_given(product):
    assert read_network(product, batch=5).batch == 5
    assert read_network(str(product), inputs={"x": [7, 16]}).batch == 7
    found = graph_of(read_network(product, batch=5).module, "n")
    assert found.input_bytes == 5 * 16 * 4 and found.weight_bytes == 16 * 8 * 4


def test_a_name_of_a_dimension_holds_for_all_inputs(tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path / "two.onnx", nodes, {"a": ["n", 4], "b": ["n", "m"]}, "y")
    assert read_network(path, inputs={"b": [3, 4]}).batch == 3
    with pytest.raises(CdmppError, match=r"input b has open dimensions, \[2, m\]: give inputs=.*--input b=2,128"):
        read_network(path, batch=2)
    with pytest.raises(CdmppError, match="n is 3 elsewhere, but 2 in b"):
        read_network(path, inputs={"a": [3, 4], "b": [2, 4]})


def test_weights_among_the_inputs_and_functions_in_the_file(tmp_path):
    weight = np.ones((16, 8), np.float32)
    nodes = [helper.make_node("Twice", ["y"], ["z"], domain="own"), helper.make_node("MatMul", ["x", "w"], ["y"])]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    path = tmp_path / "old.onnx"
    write(path, nodes[::-1], {"w": [16, 8], "x": [2, 16]}, "z", [("w", weight)], [twice])
    found = graph_of(read_network(path).module, "old")
    assert (found.input_bytes, found.weight_bytes) == (2 * 16 * 4, 16 * 8 * 4) and len(found.calls) <= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"input x has open dimensions, \[batch, 16\]: give inputs=\{\"x\": \[1, 16\]\}.*--input x=1,16\), or batch",
        ),
        ({"inputs": {"xx": [1, 16]}}, "product.onnx has no input xx, but x; did you mean x"),
        ({"inputs": {"x": [1, 17]}}, r"shape \[batch, 16\], which \[1, 17\] does not fit"),
        ({"inputs": {"x": [1]}}, r"which \[1\] does not fit"),
        ({"inputs": {"x": [1, 16]}, "batch": 2}, "batch=2, but its input x has the fixed batch 1"),
        ({"example_inputs": torch.ones(1, 16), "batch": 1}, "product.onnx has inputs of its own"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(product, options, message):
    with pytest.raises(CdmppError, match=message):
        read_network(product, **options)


def test_what_cannot_be_imported_is_named(tmp_path, product):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["y"], ["z"], name="/part/Det")]
    path = write(tmp_path / "det.onnx", nodes, {"x": [4, 4]}, "z")
    with pytest.raises(CdmppError, match=r"det\.onnx: TVM cannot import the ONNX operator Det \(node /part/Det\)"):
        read_network(path)
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], name="/part/Reshape")]
    path = write(tmp_path / "sizes.onnx", nodes, {"x": [4, 4]}, "y", [("s", np.array([3, 5], np.int64))])
    with pytest.raises(CdmppError, match=r"ONNX operator Reshape \(node /part/Reshape\): .+"):
        read_network(path)
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(CdmppError, match=r"text\.onnx cannot be read as ONNX"):
        read_network(tmp_path / "text.onnx")
    with pytest.raises(CdmppError, match=r"there is no file .*prodct\.onnx; nearest: product\.onnx"):
        read_network(tmp_path / "prodct.onnx")


def test_branches_are_refused(tmp_path):
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])],
        )
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    }
    weights = [("zero", np.zeros((), np.float32)), ("axes", np.array([0], np.int64))]
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    path = write(tmp_path / "if.onnx", nodes, {"x": [2]}, "y", weights)
    with pytest.raises(CdmppError, match="choice between two branches by the value of a tensor"):
        read_network(path)
