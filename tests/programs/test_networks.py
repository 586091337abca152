from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.programs.networks import build_model, import_network, read_zoo

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
    assert len(zoo) >= 16
    for name, spec in zoo.items():
        assert spec["source"] in ("torchvision", "transformers"), name
        assert len(spec["input"]) == 1 and set(spec["input"]) <= {"image", "tokens", "audio"}, name


def test_unknown_networks_and_sources_are_named() -> None:
    with pytest.raises(CdmppError, match="resnet18"):
        import_network("resnet81")
    with pytest.raises(CdmppError, match="torchvision or transformers"):
        build_model({"source": "keras", "build": "x", "input": {"image": 8}})


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
