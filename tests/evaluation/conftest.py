"""A small made-up data set whose latencies follow from its features, in the widths of the current layout."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.derived_table import PER_STORE_WIDTH
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.programs.task import Task

OP_CLASSES = ("conv2d", "dense", "softmax", "pool")
NETWORKS = ("resnet34", "googlenet")


def make_data(n_tasks: int = 24, each: int = 12, seed: int = 0, device: str = "a100") -> EvaluationData:
    """``each`` programs of ``n_tasks`` tasks; one leaf feature and the task's size decide the latency."""
    rng = np.random.default_rng(seed)
    tasks, asts, latency, task_ids = {}, [], [], []
    for t in range(n_tasks):
        flops = float(10 ** rng.uniform(6, 9))
        networks = {NETWORKS[t % 2]: 1 + t % 3, **({NETWORKS[1]: 1} if t == 0 else {})}
        task_id = f"{t:016x}"
        tasks[task_id] = Task(task_id, f"op{t}", OP_CLASSES[t % 4], "", flops, flops / 10, networks)
        for _ in range(each):
            n_leaf, n_kernel = int(rng.integers(1, 4)), int(rng.integers(1, 3))
            leaves = rng.uniform(0, 10, (n_leaf, LEAF_WIDTH)).astype(np.float32)
            kernels = rng.uniform(0, 10, (n_kernel, KERNEL_WIDTH)).astype(np.float32)
            order = np.arange(n_leaf, dtype=np.int32)
            asts.append(CompactAST(leaves, order, 2 * order, np.minimum(order, n_kernel - 1), kernels, "gpu"))
            slowness = leaves[:, 0].max() / 3
            latency.append(1e-6 + flops / 1e13 * np.exp(slowness + 0.02 * rng.normal()))
            task_ids.append(task_id)
    n = len(asts)
    record_ids = np.array([f"{seed * n + i:016x}" for i in range(n)])
    dataset = LatencyDataset(
        record_ids,
        np.array(task_ids),
        np.array([device] * n),
        np.array(latency),
        rng.uniform(0, 0.02, n),
        AstTable.from_asts(asts),
        tasks,
        "made up",
    )
    per_store = rng.uniform(0, 10, (n, 4 * PER_STORE_WIDTH + 1)).astype(np.float32)
    per_store[:, 0] = [ast.leaf_features[:, 0].max() for ast in asts]
    return EvaluationData(dataset, per_store, {device: NoiseFloor(7, 0.8, 0.6, 1.5)})


@pytest.fixture(scope="session")
def data() -> EvaluationData:
    return make_data()
