"""Tasks that searches are compared on, and those whose searches teach: named, found by id in a shipped data set."""

from __future__ import annotations

from pathlib import Path

from cdmpp import devices
from cdmpp.data.records import read_tasks
from cdmpp.errors import DataError
from cdmpp.programs.task import Task

DATASETS = Path(__file__).resolve().parent.parent / "datasets"

COMPARED = {
    "conv3x3": "fee1a276c8a631af",  # ResNet-18
    "conv1x1": "dbadf65abc516b2f",  # MobileNetV2
    "depthwise": "b56d9666d88c4967",  # MobileNetV2
    "matmul": "42372057898e17b7",  # GPT-2
    "batched_matmul": "8ce205fdf1943e06",  # BERT-tiny, batch 8
    "attention": "46e2d4f6390a681f",  # GPT-2, 128 tokens: queries by keys
    "softmax": "1e2a94dd6523227e",  # GPT-2, 128 tokens: with its mask
    "layernorm": "9275e739761c1e04",  # GPT-2, 128 tokens
}
"""Tasks of networks that no model was trained on (``conf/split/held_out.yaml``)."""
LEARNED = {
    "conv3x3_resnet34": "2d8c4f2b47cca51a",
    "conv3x3_resnet50": "19f210d865406972",
    "conv1x1_efficientnet_b1": "93de479f7e2a0a73",
    "conv1x1_resnet50": "4ac8812e78c5c8ac",
    "depthwise_mnasnet": "5c8aad5956ae24d2",
    "depthwise_efficientnet_b3": "716058091572d683",
    "dense_llama": "eab7c9c41fb205c6",
    "dense_bloom": "2c744a73b2191719",
    "dense_electra": "8e8dba07adff2a8b",
    "matmul_bert_medium": "4b8953a83dd68d35",
    "matmul_bert_mini": "f1afea7564eeaa79",
    "softmax_squeezebert": "070f40ef74e2a485",
    "softmax_albert": "bc206f87af9b5f08",
    "layernorm_dinov2": "96838f5443326e31",
    "layernorm_roberta": "67bdefcfb2cea582",
    "pool_squeezenet": "58dbe284fb0ffdd9",
}
"""Tasks of networks that models are trained on."""
WITH_ALL = "xeon-icelake"
"""The shipped data set with the most tasks."""


def named_tasks(device: str, names: str) -> dict[str, Task]:
    """``compared``, ``learned`` or names with commas, from the records of ``device``.

    Tasks know no device: where ``device`` has no records they come from those of ``WITH_ALL``. ``CdmppError``: no such
    device or task.
    """
    ids = COMPARED | LEARNED
    groups = {"compared": COMPARED, "learned": LEARNED}
    wanted = groups.get(names) or {name: ids.get(name, "") for name in names.split(",")}
    devices.get(device)  # says what is wrong with an unknown one
    folder = DATASETS / (device if (DATASETS / device).is_dir() else WITH_ALL)
    known = read_tasks(folder)
    if lacking := [name for name, task_id in wanted.items() if task_id not in known]:
        raise DataError(f"no task {', '.join(lacking)} in {folder}; there are {', '.join(ids)}")
    return {name: known[task_id] for name, task_id in wanted.items()}
