from __future__ import annotations

import pytest
import torch

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.measure.settings import runs_on
from cdmpp.programs.models import INPUTS, build_model
from cdmpp.programs.networks import import_network
from cdmpp.programs.task import network_family, trains
from cdmpp.programs.zoo import expand_zoo, read_zoo

TINY = {
    "source": "transformers",
    "build": "BertModel",
    "config": "BertConfig",
    "arguments": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 100,
    },
    "input": {"tokens": 16},
}


def test_the_zoo_is_complete_and_well_formed() -> None:
    zoo = read_zoo()
    assert len(zoo) >= 120 and len({network_family(name) for name in zoo}) >= 70
    for name, spec in zoo.items():
        assert spec["source"] in ("torchvision", "transformers", "handmade"), name
        assert len(set(spec["input"]) - {"batch"}) == 1 and set(spec["input"]) <= {"batch", *INPUTS}, name


def test_variants_become_entries_of_their_own() -> None:
    base = {"source": "handmade", "build": "mlp", "input": {"vector": 256}}
    variants = {"b4": {"batch": 4}, "wide": {"vector": 512}, "fp16": {"dtype": "float16"}}
    zoo = expand_zoo({"mlp": {**base, "variants": variants}})
    assert zoo == {
        "mlp": base,
        "mlp@b4": {**base, "input": {"vector": 256, "batch": 4}},
        "mlp@wide": {**base, "input": {"vector": 512}},
        "mlp@fp16": {**base, "dtype": "float16"},
    }
    assert [network_family(name) for name in zoo] == ["mlp"] * 4


def test_float16_networks_multiply_in_float16_and_only_where_the_device_does() -> None:
    spec = read_zoo()["mlp@fp16"]
    products = [task for task in import_network("mlp@fp16", spec) if task.op_class in ("dense", "matmul")]
    assert products and all('"float16"' in task.workload for task in products)
    assert all("float16" not in task.workload for task in import_network("mlp"))
    assert runs_on(spec, devices.get("h200")) and not runs_on(spec, devices.get("xeon-icelake"))
    assert runs_on(read_zoo()["mlp"], devices.get("xeon-icelake"))
    with pytest.raises(CdmppError, match="use float32, float16"):
        import_network("mlp", {**spec, "dtype": "float8"})


def test_unknown_networks_and_sources_are_named() -> None:
    with pytest.raises(CdmppError, match="resnet18"):
        import_network("resnet81")
    with pytest.raises(CdmppError, match="torchvision, transformers, handmade"):
        build_model({"source": "keras", "build": "x", "input": {"image": 8}})
    with pytest.raises(CdmppError, match="known: mlp, dlrm"):
        build_model({"source": "handmade", "build": "x", "input": {"image": 8}})
    with pytest.raises(CdmppError, match="one of image, tokens"):
        build_model({"source": "handmade", "build": "mlp", "input": {"picture": 8}})


@pytest.mark.parametrize("name", [name for name, spec in read_zoo().items() if spec["source"] == "handmade"])
def test_hand_made_networks_run(name: str) -> None:
    model, inputs = build_model(read_zoo()[name])
    with torch.no_grad():
        output = model(*inputs)
    assert len(output) == read_zoo()[name]["input"].get("batch", 1)
    assert torch.isfinite(output).all() and output.std() > 0 if output.numel() > 1 else torch.isfinite(output).all()


def test_a_network_becomes_distinct_tasks_with_weights() -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("transformers")
    import tvm

    from cdmpp.programs.identity import task_id

    tasks = import_network("tiny", TINY)
    assert len({task.task_id for task in tasks}) == len(tasks) > 10
    assert {"softmax"} < {task.op_class for task in tasks}
    # Two identical layers: what stands in each of them is called at least twice.
    assert any(task.networks["tiny"] >= 2 for task in tasks if task.op_class in ("dense", "matmul"))
    for task in tasks:
        assert task.io_bytes > 0 and task.flops >= 0 and task.origin == "torch"
        assert task_id(tvm.script.from_source(task.workload)) == task.task_id


def test_importing_twice_gives_the_same_tasks() -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("transformers")
    assert {t.task_id for t in import_network("tiny", TINY)} == {t.task_id for t in import_network("tiny", TINY)}


def test_what_trains_gives_the_tasks_of_its_training_step():
    import torch

    from cdmpp import Workload, read_step

    zoo = expand_zoo({"mlp": {**read_zoo()["mlp"], "variants": {"train": {"train": "sgd", "batch": 4}}}})
    spec = zoo["mlp@train"]
    assert trains("mlp@train") and not trains("mlp@b4") and not trains("train")
    assert spec["train"] == "sgd" and spec["input"]["batch"] == 4 and "train" not in zoo["mlp"]
    tasks = {task.task_id: task for task in import_network("mlp@train", spec)}
    model, inputs = build_model(spec)
    with torch.random.fork_rng():
        step = read_step(Workload(model, inputs, optimizer="sgd"))
    assert set(step.graph.tasks) <= set(tasks)
    views = {tasks[key].op_name.rstrip("0123456789") for key in set(tasks) - set(step.graph.tasks)}
    assert views == {"reshape", "expand_dims"}  # a compiled step runs no kernel for them
