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
from cdmpp.network.source.read import read_network  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402


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
    source = read_network(Workload(str(path)))
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
    assert read_network(Workload(product, batch=5)).batch == 5
    assert read_network(Workload(str(product), inputs={"x": [7, 16]})).batch == 7
    found = graph_of(read_network(Workload(product, batch=5)).module, "n")
    assert found.input_bytes == 5 * 16 * 4 and found.weight_bytes == 16 * 8 * 4


def test_a_name_of_a_dimension_holds_for_all_inputs(tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path / "two.onnx", nodes, {"a": ["n", 4], "b": ["n", "m"]}, "y")
    assert read_network(Workload(path, inputs={"b": [3, 4]})).batch == 3
    with pytest.raises(CdmppError, match=r"input b has open dimensions, \[2, m\]: give inputs=.*--input b=2,128"):
        read_network(Workload(path, batch=2))
    with pytest.raises(CdmppError, match="n is 3 elsewhere, but 2 in b"):
        read_network(Workload(path, inputs={"a": [3, 4], "b": [2, 4]}))


def test_weights_among_the_inputs_and_functions_in_the_file(tmp_path):
    weight = np.ones((16, 8), np.float32)
    nodes = [helper.make_node("Twice", ["y"], ["z"], domain="own"), helper.make_node("MatMul", ["x", "w"], ["y"])]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    path = tmp_path / "old.onnx"
    write(path, nodes[::-1], {"w": [16, 8], "x": [2, 16]}, "z", [("w", weight)], [twice])
    found = graph_of(read_network(Workload(path)).module, "old")
    assert (found.input_bytes, found.weight_bytes) == (2 * 16 * 4, 16 * 8 * 4) and len(found.calls) <= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"input x has open dimensions, \[batch, 16\]: give inputs=\{\"x\": \[1, 16\]\} "
            r".*--input x=1,16\), or each by its name \(--input batch=16\), or batch",
        ),
        (
            {"inputs": {"xx": [1, 16]}},
            "product.onnx has no input xx, but x, and no open dimension, but batch; did",
        ),
        ({"inputs": {"x": [1, 17]}}, r"shape \[batch, 16\], which \[1, 17\] does not fit"),
        ({"inputs": {"x": [1]}}, r"which \[1\] does not fit"),
        ({"inputs": {"x": [1, 16]}, "batch": 2}, "batch=2, but its input x has the fixed batch 1"),
        ({"example_inputs": torch.ones(1, 16), "batch": 1}, "product.onnx has inputs of its own"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(product, options, message):
    with pytest.raises(CdmppError, match=message):
        read_network(Workload(product, **options))


def test_what_cannot_be_imported_is_named(tmp_path, product):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["y"], ["z"], name="/part/Det")]
    path = write(tmp_path / "det.onnx", nodes, {"x": [4, 4]}, "z")
    with pytest.raises(CdmppError, match=r"det\.onnx: TVM cannot import the ONNX operator Det \(node /part/Det\)"):
        read_network(Workload(path))
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], name="/part/Reshape")]
    path = write(tmp_path / "sizes.onnx", nodes, {"x": [4, 4]}, "y", [("s", np.array([3, 5], np.int64))])
    with pytest.raises(CdmppError, match=r"ONNX operator Reshape \(node /part/Reshape\): .+"):
        read_network(Workload(path))
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(CdmppError, match=r"text\.onnx cannot be read as ONNX"):
        read_network(Workload(tmp_path / "text.onnx"))
    with pytest.raises(CdmppError, match=r"there is no file .*prodct\.onnx; nearest: product\.onnx"):
        read_network(Workload(tmp_path / "prodct.onnx"))


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
        read_network(Workload(path))


def save(path, nodes, inputs, outputs, opset=18, domain=None, ir_version=10, weights=()):
    """A file with declared results; the sizes of ``inputs`` and ``outputs`` by name."""
    values, results = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group.items()]
        for group in (inputs, outputs)
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph(nodes, "g", values, results, [numpy_helper.from_array(v, name) for name, v in weights])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), path)
    return path


RELU = helper.make_node("Relu", ["x"], ["y"], "the_relu")
FOREIGN = helper.make_node("Relu", ["x"], ["y"], "the_relu", domain="com.example")
FLAT = {"x": [2, 3]}, {"y": [2, 3]}
CYCLE = [helper.make_node(*one) for one in (("Relu", ["b"], ["a"]), ("Relu", ["a"], ["b"]), ("Add", ["x", "b"], ["y"]))]


@pytest.mark.parametrize(
    ("nodes", "sizes", "options", "message"),
    [
        ([FOREIGN], FLAT, {"domain": "com.example"}, r"operator Relu \(node the_relu\) is of the domain com\.example"),
        ([FOREIGN], FLAT, {}, "no valid ONNX: No opset import for domain 'com.example'"),
        ([RELU], FLAT, {"opset": 99}, r"is of operator set 99: sets 7 to \d+ can be read"),
        ([RELU], FLAT, {"opset": 6}, "is of operator set 6: sets 7 to"),
        ([RELU], FLAT, {"ir_version": 99}, "no valid ONNX: Your model ir_version 99 is higher than"),
        ([RELU, helper.make_node("Sigmoid", ["x"], ["y"])], FLAT, {}, "'y' has been used as output names multiple"),
        ([RELU], ({"x": [-4, 64]}, {"y": [-4, 64]}), {}, "the input x has the dimension -4; sizes are at least 1"),
        ([RELU], ({"x": [0, 64]}, {"y": [0, 64]}), {}, "the input x has the dimension 0; sizes are at least 1"),
        ([RELU], ({"x": [2**40, 2**40]}, {"y": [2**40, 2**40]}), {}, "which no machine can hold"),
        (CYCLE, FLAT, {}, "Nodes in a graph must be topologically sorted, however input 'b' of node"),
        ([helper.make_node("Add", ["x", "q"], ["y"])], FLAT, {}, "input 'q' of node: name: OpType: Add is not"),
        ([helper.make_node("Add", ["x"], ["y"])], FLAT, {}, r"Add:14\) has input size 1 not in range"),
        ([RELU], (FLAT[0], {"y": [2, 5]}), {}, r"Inferred shape .* differ in dimension 1: \(3\) vs \(5\)"),
        ([RELU], (FLAT[0], {}), {}, "has no outputs"),
        ([], ({"x": [2, 3]}, {"x": [2, 3]}), {}, "it has no nodes"),
    ],
)  # fmt: skip
def test_files_that_are_not_valid_are_refused_in_one_sentence(tmp_path, nodes, sizes, options, message):
    path = save(tmp_path / "bad.onnx", nodes, *sizes, **options)
    with pytest.raises(CdmppError, match=message) as refusal:
        read_network(Workload(path))
    assert "bad.onnx" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_value_of_another_shape_than_the_file_declares_is_refused(tmp_path):
    weights = [("w", np.ones((4, 3, 3, 3), np.float32))]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["h"], "turned", strides=[2, 2], output_shape=[10, 10])
    nodes = [node, helper.make_node("Relu", ["h"], ["y"])]
    path = save(tmp_path / "t.onnx", nodes, {"x": [1, 4, 5, 5]}, {"y": [1, 3, 10, 10]}, weights=weights)
    with pytest.raises(CdmppError, match=r"ConvTranspose \(node turned\).*\[1, 3, 10, 10\], but .*\[1, 3, 11, 11\]"):
        read_network(Workload(path))


def test_the_mask_of_a_dropout_that_nobody_reads_may_be_anything(tmp_path):
    """TVM makes it of the input's type; the standard says boolean."""
    nodes = [helper.make_node("Dropout", ["x"], ["h", "mask"]), helper.make_node("Relu", ["h"], ["y"])]
    path = save(tmp_path / "d.onnx", nodes, *FLAT)
    assert len(graph_of(read_network(Workload(path)).module, "d").calls) == 1
    path = save(tmp_path / "m.onnx", [*nodes, helper.make_node("Not", ["mask"], ["n"])], FLAT[0], {"y": [2, 3]})
    words = r"mask, which the ONNX operator Dropout .* declared as bool \[2, 3\], but .* float32"
    with pytest.raises(CdmppError, match=words):
        read_network(Workload(path))


def test_results_whose_type_the_file_leaves_out_are_inferred(tmp_path):
    path = save(tmp_path / "free.onnx", [RELU], *FLAT)
    model = onnx.load(path)
    model.graph.output[0].ClearField("type")
    onnx.save(model, path)
    assert len(graph_of(read_network(Workload(path)).module, "free").calls) == 1
