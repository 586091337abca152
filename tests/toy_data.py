"""A small made-up data set whose latency is a known function of its features: what training tests learn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.records import append_records, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.splits import Split
from cdmpp.programs.task import Task


@dataclass(frozen=True)
class ToyDataset:
    """The fields of ``LatencyDataset`` that training reads."""

    record_ids: np.ndarray
    task_ids: np.ndarray
    devices: np.ndarray
    latency_s: np.ndarray
    spread: np.ndarray
    op_classes: np.ndarray
    asts: AstTable
    tasks: dict[str, Task]
    source: str = "toy"
    features: str = "cdmpp"

    def __len__(self) -> int:
        return len(self.record_ids)


def toy_ast(rng: np.random.Generator, kind: str = "cpu", max_leaves: int = 9, max_kernels: int = 3) -> CompactAST:
    n_leaf, n_kernel = int(rng.integers(1, max_leaves + 1)), int(rng.integers(1, max_kernels + 1))
    n_kernel = min(n_kernel, n_leaf)
    kernels = np.sort(np.concatenate([np.arange(n_kernel), rng.integers(0, n_kernel, n_leaf - n_kernel)]))
    positions = np.cumsum(rng.integers(1, 4, n_leaf))
    return CompactAST(
        rng.uniform(0, 6, (n_leaf, LEAF_WIDTH)).astype(np.float32),
        positions.astype(np.int32),
        (2 * positions).astype(np.int32),
        kernels.astype(np.int32),
        rng.uniform(0, 6, (n_kernel, KERNEL_WIDTH)).astype(np.float32),
        kind,
    )


def toy_dataset(n: int = 240, seed: int = 0, devices: tuple[str, ...] = ("xeon-icelake",), kind: str = "cpu"):
    """n programs of n/10 tasks and a random split; latency is a smooth function of leaves, kernels and device."""
    rng = np.random.default_rng(seed)
    asts = [toy_ast(rng, kind) for _ in range(n)]
    places = rng.integers(0, len(devices), n)
    logs = [
        np.log(1e-5) + 0.5 * a.leaf_features[:, :2].mean() + 0.1 * a.kernel_features[:, 0].sum() + 0.7 * place
        for a, place in zip(asts, places, strict=True)
    ]
    tasks = np.array([f"task{i % max(1, n // 10):03d}" for i in range(n)])
    dataset = ToyDataset(
        record_ids=np.array([f"record{i:05d}" for i in range(n)]),
        task_ids=tasks,
        devices=np.array(devices)[places],
        latency_s=np.exp(np.array(logs)),
        spread=np.zeros(n),
        op_classes=np.array(["dense", "softmax"])[rng.integers(0, 2, n)],
        asts=AstTable.from_asts(asts),
        tasks={t: Task(t, t, "dense", "", 1.0, 1.0, {"net": 1}) for t in np.unique(tasks)},
    )
    order = rng.permutation(n)
    a, b = int(0.7 * n), int(0.85 * n)
    split = Split("random", seed, np.sort(order[:a]), np.sort(order[a:b]), np.sort(order[b:]))
    return dataset, split


def relabelled(dataset: ToyDataset, **changes: object) -> ToyDataset:
    return replace(dataset, **changes)  # type: ignore[arg-type]


def write_toy_dataset(
    folder: Path, n: int = 120, device: str = "xeon-icelake", factor: float = 1.0, prefix: str = ""
) -> None:
    """A data set folder as measuring leaves it, with stored ASTs: loading it needs no TVM.

    ``factor`` multiplies the latencies, ``prefix`` goes before the record ids: the same tasks on another device.
    """
    dataset, _ = toy_dataset(n)
    ids = [f"{prefix}{identity}" for identity in dataset.record_ids]
    records = [
        Record(identity, str(task), device, '{"kind": "llvm"}', "[[],[]]", (latency,), latency)
        for identity, task, latency in zip(ids, dataset.task_ids, (factor * dataset.latency_s).tolist(), strict=True)
    ]
    write_info(folder, name=folder.name)
    write_tasks(folder, dataset.tasks.values())
    append_records(folder, records)
    write_asts(folder / "asts" / "part-00000.parquet", ids, dataset.asts)
