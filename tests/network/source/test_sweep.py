"""Every network of the zoo from torch, a part of them as ONNX files, and the shipped checkpoints that are not large."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = [pytest.mark.tvm, pytest.mark.slow]

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source.checkpoint import read_checkpoints  # noqa: E402
from cdmpp.network.source.read import read_network  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402
from cdmpp.programs.identity import task_id  # noqa: E402
from cdmpp.programs.models import build_model  # noqa: E402
from cdmpp.programs.replay import parse_workload  # noqa: E402
from cdmpp.programs.zoo import read_zoo  # noqa: E402

ZOO = [name for name in read_zoo() if "@" not in name]
AS_ONNX = (
    "resnet18 mobilenet_v2 squeezenet1_1 efficientnet_b0 vgg11 shufflenet_v2_x1_0 convnext_tiny vit_small bert_tiny "
    "distilbert gpt2 llama_small t5_encoder mlp unet dcgan"
).split()
LARGE = ("TinyLlama", "bloom", "Qwen", "xlm-roberta", "large", "gpt2-medium", "gpt2-xl", "dinov2")


def check(source):
    graph = graph_of(source.module, source.name)
    print(f"{source.name}: {len(graph.calls)} calls, {len(graph.tasks)} kernels, {graph.weight_bytes / 1e6:.1f} MB")
    assert graph.calls and graph.results
    # The texts of tasks are what later steps start from: they are the same tasks.
    assert [task_id(parse_workload(task.workload)) for task in graph.tasks.values()] == list(graph.tasks)
    gc.collect()


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    check(read_network(Workload(name)))


@pytest.mark.parametrize("name", AS_ONNX)
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    model, inputs = build_model(read_zoo()[name])
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(model, inputs, str(path), dynamo=True, verbose=False)
    check(read_network(Workload(path)))


@pytest.mark.parametrize("name", [n for n in read_checkpoints() if not any(part in n for part in LARGE)])
def test_checkpoints(name):
    check(read_network(Workload(f"hf:{name}")))
