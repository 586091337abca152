"""ONNX files as PyTorch runs them: ONNX's own cases, numbers and calls of exported models, QDQ, what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from cdmpp import cli
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from cdmpp.network.source.onnx_ops.table import RULES  # noqa: E402
from cdmpp.network.source.onnx_reader import module_of_onnx  # noqa: E402
from tests.network.dispatched import Log  # noqa: E402
from tests.network.source.onnx_cases import cases, outcome  # noqa: E402
from tests.network.source.quantised_product import quantised_product  # noqa: E402

OTHERWISE = (
    *("test_top_k_same_values", "test_top_k_same_values_largest", "test_top_k_same_values_2d"),  # any of equal ones
    *("test_gather_elements_negative_indices", "test_scatter_elements_with_negative_indices"),  # no such places
    *("test_training_dropout_default", "test_training_dropout"),  # drawn
)
"""Cases whose values are others in PyTorch, of the same sizes."""
WIDTH, FLOATS = 16, {"y": TensorProto.FLOAT}
WEIGHT = np.random.default_rng(0).random((WIDTH, 32)).astype(np.float32)


def saved(path, nodes, inputs, outputs=FLOATS, weights=(), opset=18, **options):
    """A file of nodes; ``inputs``: name -> shape of floats, or shape and type, with texts for what is open."""
    values = [
        helper.make_tensor_value_info(name, *(shape if isinstance(shape, tuple) else (TensorProto.FLOAT, shape)))
        for name, shape in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights]
    graph = helper.make_graph(nodes, "g", values, results, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path, **options)
    return path


def test_results_are_those_of_the_cases_of_onnx(tmp_path):
    """Up to eight cases of each operator: results are equal, or the node is refused by its name."""
    chosen: dict[str, list] = {}
    for one in cases():
        operator = one.model.graph.node[0].op_type
        if operator in (*RULES, "Loop") and one.name not in OTHERWISE and "expanded" not in one.name:
            chosen.setdefault(operator, []).append(one)
    found = {one.name: outcome(one, tmp_path) for many in chosen.values() for one in many[:8]}
    assert {name: told for name, told in found.items() if told.startswith("wrong")} == {}
    assert Counter(told.partition(":")[0] for told in found.values())["same"] >= 410
    told = ("(node ", "with which PyTorch computes nothing", "no valid ONNX", "has the dimension 0", "operator set 1:")
    assert [one for one in found.values() if one != "same" and not any(words in one for words in told)] == []


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(WIDTH, 8, 2, batch_first=True, bidirectional=True), nn.GRU(WIDTH, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.mlp(x + self.out(attended))


class Image(nn.Sequential):
    def __init__(self) -> None:
        block = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8, padding=1)
        super().__init__(*block, nn.GroupNorm(2, 8), nn.SiLU(), nn.Upsample(scale_factor=2), nn.AvgPool2d(2),
                         nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))  # fmt: skip


MODELS = {
    "image": (Image, (2, 3, 32, 32)),
    "attending": (Attending, (2, 6, WIDTH)),
    "recurrent": (Recurrent, (3, 5, WIDTH)),
}


@pytest.mark.parametrize("opset", [13, 18, 20, 23, 24])
@pytest.mark.parametrize("name", MODELS)
def test_exported_models_compute_and_multiply_what_they_did(tmp_path, name, opset):
    """Values are those of the model; products and convolutions are those of its own run, whoever adds the bias."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x, path = make().eval(), torch.randn(shape), tmp_path / "model.onnx"
    try:
        torch.onnx.export(model, (x,), str(path), dynamo=opset >= 18, opset_version=opset, verbose=False)
    except torch.onnx.errors.UnsupportedOperatorError as error:
        pytest.skip(f"this exporter does not write set {opset}: {error}")
    module, _ = module_of_onnx(path, None, None)
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
    found, own = (read_run(given) for given in (Workload(path), Workload(model, (x,))))
    assert heavy(found) == heavy(own)
    weights = sum(one.numel() for name, one in model.named_parameters() if "running" not in name)
    assert found.graph.weight_bytes == pytest.approx(4 * weights, rel=0.06)  # a folded norm, constants


def heavy(read) -> int:
    """FLOPs of products, convolutions and attention: a bias in a product counts nothing."""
    operators = [read.operators[call.task_id] for call in read.graph.calls]
    sizes = [(one, one.matmul) for one in operators if one.kind.family in ("linear", "bmm")]
    found = sum(2 * size[0] * size[1] * size[2] * size[3] for _, size in sizes)
    found += sum(one.flops for one in operators if one.kind.family == "conv2d")
    for one in operators:
        if one.kind.family == "attention":
            found += 4 * one["batch"] * one["heads"] * one["rows"] * one["cols"] * one["inner"]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_are_dispatched(tmp_path, name):
    """The module that is read is run: PyTorch dispatches the products that were read, of those sizes."""
    pytest.importorskip("onnxscript")
    make, shape = MODELS[name]
    path = tmp_path / "model.onnx"
    torch.onnx.export(make().eval(), (torch.randn(shape),), str(path), dynamo=True, opset_version=18, verbose=False)
    network, read = read_torch(Workload(path)), read_run(Workload(path), "cpu")
    with torch.no_grad(), Log() as log:
        network.model(*network.example)
    found: Counter = Counter()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.kind.family in ("linear", "bmm") and not call.name.startswith("lstm"):  # oneDNN runs that whole
            found["product", *operator.matmul, "torch.float32"] += 1
    assert found == Counter({key: count for key, count in log.seen.items() if key[0] == "product"})


MATMUL = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]


@pytest.mark.parametrize("sizes", [{"inputs": {"batch": (2,), "seq": (8,)}}, {"inputs": {"seq": (8,)}, "batch": 2}])
def test_open_dimensions_have_sizes_by_name(tmp_path, sizes):
    path = saved(tmp_path / "open.onnx", MATMUL, {"x": ["batch", "seq", WIDTH]}, weights=[("w", WEIGHT)])
    read = read_run(Workload(path, **sizes))
    assert [str(read.operators[call.task_id]) for call in read.graph.calls] == ["linear 16x16x32 bias=0", "relu 16x32"]
    with pytest.raises(CdmppError, match=r"open\.onnx: the input x has open dimensions, \[batch, seq, 16\]"):
        read_run(Workload(path))


def test_external_weights_are_weights(tmp_path):
    options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    path = saved(tmp_path / "apart.onnx", MATMUL, {"x": [2, WIDTH]}, weights=[("w", WEIGHT)], **options)
    assert read_run(Workload(path)).graph.weight_bytes == WEIGHT.nbytes
    (tmp_path / "w.data").unlink()
    with pytest.raises(CdmppError, match="w.data"):
        read_run(Workload(path))


def test_quantised_weights_are_bytes_and_products_floats(tmp_path):
    nodes, weights = quantised_product(WEIGHT)
    path = saved(tmp_path / "qdq.onnx", nodes, {"x": [2, WIDTH]}, weights=weights, opset=21)
    read = read_run(Workload(path))
    assert read.graph.weight_bytes == sum(value.nbytes for _, value in weights)
    names = Counter(read.operators[call.task_id].name for call in read.graph.calls)
    assert names["linear"] == 1 and len(read.graph.calls) == 1 + 2 * (5 + 3) + 3
    x = np.random.default_rng(1).random((2, WIDTH)).astype(np.float32)
    from onnx.reference import ReferenceEvaluator

    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    module, _ = module_of_onnx(path, None, None)
    torch.testing.assert_close(module(torch.from_numpy(x)), torch.from_numpy(expected), rtol=0, atol=0.1 + 1e-5)


def test_arithmetic_of_sizes_runs_nothing(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "axes"], ["b1"]),
        helper.make_node("Concat", ["b1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    weights = [("zero", np.array(0)), ("axes", np.array([0])), ("rest", np.array([-1]))]
    read = read_run(Workload(saved(tmp_path / "sizes.onnx", nodes, {"x": [4, 3, 5]}, weights=weights)))
    assert [str(read.operators[call.task_id]) for call in read.graph.calls] == ["relu 4x15"]


def test_a_step_trains_its_floats(tmp_path):
    path = saved(tmp_path / "step.onnx", MATMUL, {"x": [4, WIDTH]}, weights=[("w", WEIGHT)])
    read = read_step(Workload(path, mode="training_step", loss="mse"))
    assert [one.bytes for one in read.step.parameters] == [WEIGHT.nbytes]
    assert any("dropouts are those of inference" in one for one in read.warnings)


TWO = [helper.make_tensor_value_info("t", TensorProto.FLOAT, [4, 4])]
BRANCHES = [helper.make_graph([helper.make_node(name, ["x"], ["t"])], name, [], TWO) for name in ("Relu", "Tanh")]


@pytest.mark.parametrize(("condition", "name"), [(True, "relu"), (False, "tanh")])
def test_a_branch_that_is_known_is_taken(tmp_path, condition, name):
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=BRANCHES[0], else_branch=BRANCHES[1])]
    path = saved(tmp_path / "if.onnx", nodes, {"x": [4, 4]}, weights=[("c", np.array(condition))])
    read = read_run(Workload(path))
    assert [read.operators[call.task_id].name for call in read.graph.calls] == [name]


def looped(condition, limit):
    """A loop that doubles x while ``condition``, a node that makes ``go``, says so."""
    one = helper.make_tensor_value_info
    inputs = [one("i", TensorProto.INT64, []), one("c", TensorProto.BOOL, []), one("s", TensorProto.FLOAT, [4, 4])]
    outputs = [one("go", TensorProto.BOOL, []), *(one(name, TensorProto.FLOAT, [4, 4]) for name in ("t", "u"))]
    nodes = [condition, helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Relu", ["t"], ["u"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    weights = [("three", np.array(3)), ("m", np.array(limit)), ("yes", np.array(True))]
    return [helper.make_node("Loop", ["m", "", "x"], ["y", "z"], name="l", body=body)], weights


@pytest.mark.parametrize(
    ("condition", "limit", "rounds"),
    [
        (helper.make_node("Identity", ["c"], ["go"]), 3, 3),
        (helper.make_node("Less", ["i", "three"], ["go"]), 9, 4),
    ],
)
def test_a_loop_of_known_rounds_runs_them_all(tmp_path, condition, limit, rounds):
    nodes, weights = looped(condition, limit)
    path = saved(tmp_path / "loop.onnx", nodes, {"x": [4, 4]}, {**FLOATS, "z": TensorProto.FLOAT}, weights)
    module, _ = module_of_onnx(path, None, None)
    x = torch.randn(4, 4)
    last, every = module(x)
    assert torch.equal(last, 2**rounds * x)
    assert torch.equal(every, torch.stack([(2**place * x).relu() for place in range(1, rounds + 1)]))
    read = read_run(Workload(path))
    names = Counter(read.operators[call.task_id].name for call in read.graph.calls)
    assert names == {"add": rounds, "relu": rounds, "copy": 1}


@pytest.mark.parametrize(
    ("condition", "limit", "told"),
    [
        (helper.make_node("Identity", ["b"], ["go"]), 3, r"Loop \(node l\) ends by the values of a tensor"),
        (helper.make_node("Identity", ["c"], ["go"]), 1000, r"Loop \(node l\) has more than 256 rounds"),
        (helper.make_node("Identity", ["c"], ["go"]), 0, r"Loop \(node l\) has no rounds"),
    ],
)
def test_a_loop_of_unknown_rounds_is_refused_by_node(tmp_path, condition, limit, told):
    nodes, weights = looped(condition, limit)
    inputs = {"x": [4, 4], "b": (TensorProto.BOOL, [])}
    path = saved(tmp_path / "loop.onnx", nodes, inputs, {**FLOATS, "z": TensorProto.FLOAT}, weights)
    with pytest.raises(CdmppError, match=told):
        module_of_onnx(path, None, None)


@pytest.mark.parametrize(("kind", "low"), [(TensorProto.INT4, -8), (TensorProto.UINT4, 0)])
@pytest.mark.parametrize("width", [6, 7])
def test_weights_of_four_bits_are_as_large_as_they_are_packed(tmp_path, kind, low, width):
    whole = np.random.default_rng(0).integers(low, low + 16, (8, width)).astype(np.int8 if low else np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0),
        helper.make_node("MatMul", ["x", "d"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "t"], ["q"], output_dtype=kind),
        helper.make_node("DequantizeLinear", ["q", "t"], ["y"]),
    ]
    scales = np.linspace(0.1, 0.8, 8, dtype=np.float32)
    path = saved(
        tmp_path / "four.onnx", nodes, {"x": [3, 8]}, weights=[("s", scales), ("t", np.float32(0.5))], opset=23
    )
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", kind, whole.shape, whole.flatten().tolist()))
    onnx.save(model, path)
    module, _ = module_of_onnx(path, None, None)
    x = torch.randn(3, 8)
    (wanted,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(module(x).numpy(), wanted, atol=1e-6)
    read = read_run(Workload(path))
    assert read.graph.weight_bytes == 8 * -(-width // 2) + 4 * 8 + 4
    with pytest.raises(CdmppError, match=r"Transpose \(node t\) reads numbers of 4 bits"):
        moved = helper.make_node("Transpose", ["w"], ["v"], name="t")
        model.graph.node.extend([moved, helper.make_node("DequantizeLinear", ["v", "t"], ["z"])])
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
        onnx.save(model, path)
        module_of_onnx(path, None, None)


def test_a_product_of_whole_numbers_is_that_of_pytorch(tmp_path):
    """Of unsigned bytes with a zero: they become signed ones, and sums of columns correct the product."""
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])]
    weights = [("w", (10 * WEIGHT).astype(np.int8)), ("z", np.uint8(3))]
    path = saved(
        tmp_path / "whole.onnx", nodes, {"x": (TensorProto.UINT8, [4, WIDTH])}, {"y": TensorProto.INT32}, weights
    )
    read = read_run(Workload(path))
    assert read.graph.weight_bytes >= WEIGHT.size
    assert "product of int8, int32 out" in read.stand_ins.values()


def test_boxes_that_are_kept_are_as_many_as_is_said(tmp_path):
    nodes = [
        helper.make_node("NonMaxSuppression", ["b", "c", "most", "overlap", "score"], ["i"]),
        helper.make_node("Gather", ["i", "two"], ["k"], axis=1),
        helper.make_node("Squeeze", ["k", "one"], ["p"]),
        helper.make_node("Squeeze", ["b", "nought"], ["flat"]),
        helper.make_node("Gather", ["flat", "p"], ["y"], axis=0),
    ]
    weights = [
        ("most", np.array([50])), ("overlap", np.array([0.5], np.float32)), ("score", np.array([0.1], np.float32)),
        ("two", np.array([2])), ("one", np.array([1])), ("nought", np.array([0])),
    ]  # fmt: skip
    path = saved(tmp_path / "nms.onnx", nodes, {"b": [1, 100, 4], "c": [1, 3, 100]}, weights=weights)
    with pytest.raises(CdmppError, match=r"NonMaxSuppression \(node i\) selects by the values .*--boxes"):
        read_run(Workload(path))
    read = read_run(Workload(path, boxes=20))
    assert read.graph.calls[-1].output_bytes == 4 * 3 * 20 * 4


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (helper.make_node("Det", ["x"], ["y"], name="/a/Det"), r"Det \(node /a/Det\) is none that is known here"),
        (helper.make_node("NonZero", ["x"], ["y"], name="n"), r"NonZero \(node n\) selects .*, --boxes"),
        (helper.make_node("Reshape", ["x", "i"], ["y"], name="r"), r"\(node r\) takes its shape from the values"),
        (helper.make_node("If", ["b"], ["y"], name="f", then_branch=BRANCHES[0], else_branch=BRANCHES[1]),
         r"If \(node f\) chooses a branch by the values"),
        (helper.make_node("Cast", ["x"], ["y"], name="c", to=TensorProto.UINT16), "has the type UINT16"),
        (helper.make_node("MatMulInteger", ["v", "q"], ["y"], name="m"), r"\(node m\) multiplies a vector of whole"),
        (helper.make_node("CumSum", ["x", "k"], ["y"], name="s", reverse=1), r"\(node s\) has reverse=1"),
    ],
)  # fmt: skip
def test_what_pytorch_has_not_is_refused_by_node(tmp_path, node, told):
    inputs = {
        "x": [4, 4], "i": (TensorProto.INT64, [2]), "b": (TensorProto.BOOL, []), "q": (TensorProto.UINT8, [4, 4]),
        "v": (TensorProto.UINT8, [4]),
    }  # fmt: skip
    made = {"NonZero": TensorProto.INT64, "Cast": TensorProto.UINT16, "MatMulInteger": TensorProto.INT32}
    results = {"y": made.get(node.op_type, TensorProto.FLOAT)}
    path = saved(tmp_path / "not.onnx", [node], inputs, results, weights=[("k", np.array(0))])
    with pytest.raises(CdmppError, match=told):
        read_run(Workload(path))


def test_an_attribute_that_no_rule_reads_is_refused(tmp_path):
    node = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=1)
    path = saved(tmp_path / "own.onnx", [node], {"x": [4, 4]})
    assert len(read_run(Workload(path)).graph.calls) == 1
    node = helper.make_node("Resize", ["x", "", "f"], ["y"], name="z", mode="nearest", antialias=1,
                            nearest_mode="floor", coordinate_transformation_mode="asymmetric")  # fmt: skip
    path = saved(
        tmp_path / "own.onnx", [node], {"x": [1, 1, 4, 4]}, weights=[("f", np.array([1, 1, 2, 2], np.float32))]
    )
    with pytest.raises(CdmppError, match=r"\(node z\) has axes, antialias or a policy"):
        read_run(Workload(path))


def test_it_has_inputs_of_its_own(tmp_path):
    path = saved(tmp_path / "own.onnx", MATMUL, {"x": [4, WIDTH]}, weights=[("w", WEIGHT)])
    with pytest.raises(UsageError, match="has inputs of its own"):
        read_run(Workload(path, torch.zeros(4, WIDTH)))
    with pytest.raises(UsageError, match="attention eager"):
        read_run(Workload(path, attention="eager"))


def test_the_command_line_takes_it_in_every_precision(tmp_path, capsys):
    path = saved(tmp_path / "open.onnx", MATMUL, {"x": ["batch", WIDTH]}, weights=[("w", WEIGHT)])
    command = ["network", str(path), "--runtime", "torch", "--device", "h100", "--input", "batch=8"]
    for precision, dtype in (("fp32", ""), ("bf16", " bfloat16"), ("bf16-autocast", " bfloat16")):
        assert cli.main([*command, "--precision", precision]) == 0
        shown = capsys.readouterr()
        assert f"linear 8x16x32 bias=0{dtype}" in shown.out and "runs as its nodes say" in shown.err
