"""Questions that no server may answer, each with the statuses that it may have."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple


class Bad(NamedTuple):
    """A request, and the statuses of its refusal."""

    address: str
    body: bytes = b""
    statuses: tuple[int, ...] = (400, 422)
    method: str = "POST"
    headers: Mapping[str, str] = {"content-type": "application/json"}


NETWORK: dict[str, Any] = {"network": "bert_tiny", "device": "a100", "runtime": "torch"}
LINEAR = {"name": "linear", "sizes": {"rows": 8, "inner": 8, "cols": 8}}
PLAN = {"network": "bert_tiny", "device": "a100", "ranks": 2, "link": "nvlink3", "global_batch": 8}


def _network(address: str = "/v1/network", **changes: Any) -> Bad:
    return Bad(address, json.dumps({**NETWORK, **changes}).encode())


def _plan(**changes: Any) -> Bad:
    return Bad("/v1/plan", json.dumps({**PLAN, **changes}).encode())


def _operator(**changes: Any) -> Bad:
    return _programs({"operators": [{**LINEAR, **changes}]}, "a100")


def _programs(programs: Any, device: str = "xeon-icelake") -> Bad:
    return Bad("/v1/predict", json.dumps({"device": device, "programs": programs}).encode())


@cache
def onnx_of(*changes: str) -> str:
    """A small ONNX file in Base64, with some fault."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    weight = numpy_helper.from_array(np.ones((16, 8), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    if "huge" in changes:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**20], raw_data=b"")
    if "negative" in changes:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-16, 8], raw_data=b"x")
    if "external" in changes:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16, 8], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value="../../../etc/passwd")
    if "short" in changes:
        weight.raw_data = weight.raw_data[:10]
    if "constant" in changes:
        shape = helper.make_tensor("s", TensorProto.INT64, [2], [2**20, 2**20])
        node = helper.make_node("ConstantOfShape", ["s"], ["y"])
        weight = shape
    if "domain" in changes:
        node = helper.make_node("Anything", ["x", "w"], ["y"], domain="com.evil")
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return base64.b64encode(model.SerializeToString()).decode()


def _onnx(*changes: str) -> Bad:
    return _network(network={"onnx": onnx_of(*changes)})


def _external_in_attribute() -> Bad:
    import onnx
    from onnx import TensorProto, helper

    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[16, 8], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("MatMul", ["x", "c"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    assert isinstance(model, onnx.ModelProto)
    return _network(network={"onnx": base64.b64encode(model.SerializeToString()).decode()})


_ANYTHING = "@T.prim_func\ndef main(a: T.Buffer((8,), 'float32')):\n    {}\n"
_MODULE = '{"root_index": 0, "nodes": [{"type": "runtime.Module"}]}'
_GRAPH = {"name": "x", "calls": [], "tasks": {}, "folded": 0, "weight_bytes": 0, "input_bytes": 0, "results": [],
          "views": 0}  # fmt: skip
_CALL = {"name": "a", "task_id": "0" * 16, "inputs": [], "output_bytes": 4, "resident": [], "held": []}
_TASK = {"task_id": "0" * 16, "op_name": "a", "op_class": "other", "workload": "import os", "flops": 1.0,
         "io_bytes": 8.0, "networks": {}, "origin": ""}  # fmt: skip


def _graph(**changes: Any) -> Bad:
    graph = {**_GRAPH, "calls": [_CALL], "tasks": {"0" * 16: _TASK}, "results": [0], **changes}
    return _network(network={"graph": graph, "batch": 1}, runtime="tvm", device="xeon-icelake")


PLAIN = {"content-type": "text/plain"}
BAD: dict[str, Bad] = {
    "no body": Bad("/v1/network"),
    "no JSON": Bad("/v1/network", b"hello"),
    "not UTF-8": Bad("/v1/network", b'{"network": "\xff"}'),
    "another type": Bad("/v1/network", json.dumps(NETWORK).encode(), (415,), headers=PLAIN),
    "a list": Bad("/v1/network", b"[]"),
    "null": Bad("/v1/network", b"null"),
    "NaN": Bad("/v1/network", b'{"network": "bert_tiny", "device": "a100", "moe_imbalance": NaN}'),
    "infinity": Bad("/v1/network", b'{"network": "bert_tiny", "device": "a100", "moe_imbalance": 1e999}'),
    "nested deep": Bad("/v1/network", b'{"network":' * 100_000),
    "a key twice": Bad("/v1/network", b'{"network": "bert_tiny", "network": "hf:gpt2", "device": "a100"}'),
    "an endless number": Bad("/v1/network", b'{"batch": ' + b"9" * 10_000 + b"}"),
    "too large": Bad("/v1/network", b" " * 2_100_000, (413,)),
    "packed": Bad("/v1/network", b"\x1f\x8b", (415,), headers={"content-encoding": "gzip"}),
    "no such address": Bad("/v1/nothing", b"{}", (404,)),
    "no such method": Bad("/v1/network", b"", (405,), method="GET"),
    "no such form": Bad("/v1/network?form=pickle", json.dumps(NETWORK).encode()),
    "unknown field": _network(example_inputs=[1]),
    "a path": _network(network="/etc/passwd"),
    "code": _network(network="module.py:function"),
    "a folder of the hub": _network(network="hf:/etc"),
    "an address": _network(network="http://127.0.0.1/model.onnx"),
    "an unknown device": _network(device="../../etc/passwd"),
    "a model folder": _network(model="/tmp"),
    "a database": _network(schedule="database:/tmp", runtime="tvm"),
    "a link file": _plan(link="/tmp/x.csv"),
    "a cluster file": _plan(link=None, cluster="/tmp/x.yaml"),
    "batch 0": _network(batch=0),
    "a negative batch": _network(batch=-1),
    "a huge batch": _network(batch=10**30),
    "a batch that is text": _network(batch="4"),
    "a batch that is true": _network(batch=True),
    "half a batch": _network(batch=1.5),
    "more tokens than there are": _network(network="hf:gpt2", sequence=10**9),
    "elements that 64 bits do not count": _network(
        network="torchvision:resnet18", inputs={"x": [2**31, 3, 2**31, 2**31]}
    ),
    "an input without sizes": _network(inputs={"input_ids": []}),
    "a negative input": _network(inputs={"input_ids": [-1, 5]}),
    "half a letter": Bad("/v1/network", b'{"network": "\\ud800", "device": "a100"}'),
    "more operators than may be": _programs({"operators": [LINEAR] * 10_001}, "a100"),
    "another back end": _plan(backend="../../x"),
    "an unknown precision": _network(precision="float7"),
    "an unknown optimizer": _network("/v1/step", optimizer="magic"),
    "a loss that is a function": _network("/v1/step", loss="lambda x: x"),
    "no ranks": _plan(ranks=None),
    "ranks without number": _plan(ranks=-4),
    "too many ranks": _plan(ranks=2**31),
    "an unknown strategy": _plan(strategies=["__import__('os')"]),
    "devices without ranks": _plan(device={}, ranks=None),
    "devices with odd ranks": _plan(device={"a100": 0}, ranks=None),
    "a plan that does not fit": _plan(memory_gb=1e-6),
    "no memory": _plan(memory_gb=0),
    "no operator": _operator(name="no_such"),
    "sizes that are text": _operator(sizes="8xx8"),
    "sizes without end": _operator(sizes="x".join(["8"] * 60)),
    "negative sizes": _operator(sizes={"rows": -8, "inner": 8, "cols": 8}),
    "huge sizes": _operator(sizes={"rows": 10**40, "inner": 8, "cols": 8}),
    "elements that are none": _operator(elements=-1.0),
    "programs of two kinds": _programs({"operators": [LINEAR], "script": "x"}),
    "no programs": _programs({"operators": []}),
    "a script that is none": _programs({"script": "hello"}),
    "a script that imports": _programs({"script": "import os\nos.system('true')\n"}),
    "a script with a call": _programs({"script": _ANYTHING.format("__import__('os').system('true')")}),
    "a script with call_extern": _programs({"script": _ANYTHING.format("T.call_extern('int32', 'system', 'true')")}),
    "a script nested deep": _programs({"script": _ANYTHING.format("a[0] = " + "(" * 5000 + "1" + ")" * 5000)}),
    "TVM's JSON that is none": _programs({"tvm_json": ["{}"]}),
    "TVM's JSON of something else": _programs({"tvm_json": [_MODULE]}),
    "TVM's JSON without end": _programs({"tvm_json": ["[" * 100_000]}),
    "names of other programs": _programs({"tvm_json": ["{}"], "names": ["a", "b"]}),
    "ONNX that is none": _network(network={"onnx": base64.b64encode(b"\x00" * 1000).decode()}),
    "ONNX that is empty": _network(network={"onnx": ""}),
    "no Base64": _network(network={"onnx": "%%%"}),
    "a graph without calls": _graph(calls=[], results=[]),
    "a graph with code": _graph(),
    "a graph with a call of nothing": _graph(tasks={}),
    "a graph in a circle": _graph(calls=[{**_CALL, "inputs": [0]}]),
    "a graph with negative bytes": _graph(calls=[{**_CALL, "output_bytes": -4}]),
    "a graph with a field more": _graph(calls=[{**_CALL, "x": 1}]),
    "a graph with odd calls": _graph(calls=["x"]),
    "a graph with odd tasks": _graph(tasks={"0" * 16: "x"}),
    "a graph with endless flops": _graph(tasks={"0" * 16: {**_TASK, "flops": "1e999"}}),
    "a graph of eager kernels": _network(network={"graph": _GRAPH, "batch": 1}),
    "ONNX with a huge weight": _onnx("huge"),
    "ONNX with a negative size": _onnx("negative"),
    "ONNX that names a file": _onnx("external"),
    "ONNX that names a file in a constant": _external_in_attribute(),
    "ONNX with a short weight": _onnx("short"),
    "ONNX with a huge constant": _onnx("constant"),
    "ONNX of another domain": _onnx("domain"),
}
