"""A graph network and a recommender: lookups and stores of a real run here, with the bytes that they move."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatched import Log

NODES, EDGES, WIDTH, ROWS, BAGS, EACH, TABLES = 50, 300, 32, 1000, 16, 5, 3


class MessagePassing(nn.Module):
    """Messages along edges, summed, averaged and compared at the nodes that they reach."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(WIDTH, WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages, ends = self.message(x)[edges[0]], edges[1]
        each = ends.unsqueeze(-1).expand(-1, WIDTH)
        total = torch.zeros_like(x).index_add_(0, ends, messages)
        largest = torch.zeros_like(x).scatter_reduce(0, each, messages, "amax")
        mean = torch.zeros_like(x).scatter_reduce(0, each, messages, "mean", include_self=False)
        return torch.relu(self.update(torch.cat([total, largest, mean], -1)))


class Recommender(nn.Module):
    """DLRM: sums of looked-up rows and dense features, products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        pairs = (TABLES + 1) * TABLES // 2
        self.dense, self.top = nn.Linear(13, WIDTH), nn.Linear(WIDTH + pairs, 1)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        first = self.dense(dense)
        vectors = torch.stack([first, *(table(rows, offsets) for table in self.tables)], 1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))
        low, high = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        return self.top(torch.cat([first, pairs[:, low, high]], 1))


GRAPH = (torch.randn(NODES, WIDTH), torch.randint(0, NODES, (2, EDGES)))
CLICKS = (torch.randn(BAGS, 13), torch.randint(0, ROWS, (BAGS * EACH,)), torch.arange(0, BAGS * EACH, EACH))


class Stores(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func._opname] += 1
        return func(*args, **(kwargs or {}))


def found(read, name: str) -> list:
    return [
        read.operators[call.task_id]
        for place, call in enumerate(read.graph.calls)
        if call.forward is None and (read.stand_ins.get(place) == name or call.name.startswith(f"{name}#"))
    ]


@pytest.mark.parametrize(
    ("model", "example"), [(MessagePassing(), GRAPH), (Recommender(), CLICKS)], ids=["graph", "dlrm"]
)
def test_products_and_stores_are_those_of_a_real_run(model, example):
    read = read_run(Workload(model, example))
    with torch.no_grad(), Log() as log, Stores() as stores:
        model(*example)
    products = Counter(
        ("product", *one.matmul, "torch.float32")
        for call in read.graph.calls
        if (one := read.operators[call.task_id]).kind.family in ("linear", "bmm")
    )
    assert products == Counter({key: n for key, n in log.seen.items() if key[0] == "product"})
    for name in ("index_add_", "scatter_reduce"):
        assert len(found(read, name)) == stores.seen[name]
    assert (
        len(found(read, "embedding_bag")) == stores.seen["_embedding_bag_forward_only"] + stores.seen["_embedding_bag"]
    )


def test_stores_move_the_edges_and_the_nodes():
    read = read_run(Workload(MessagePassing(), GRAPH))
    edge, nodes, ends = 4 * EDGES * WIDTH, 4 * NODES * WIDTH, 8 * EDGES
    (added,) = found(read, "index_add_")
    assert added.io_bytes == pytest.approx(edge + 2 * edge + ends, rel=0.02)  # messages; places read and written
    for one in found(read, "scatter_reduce"):  # one index a message, however many numbers it has: it is a view
        assert one.io_bytes == pytest.approx(2 * nodes + edge + 2 * edge + ends, rel=0.02)


def test_bags_read_their_rows_and_write_their_sums():
    read = read_run(Workload(Recommender(), CLICKS))
    for one in found(read, "embedding_bag"):
        assert one.io_bytes == pytest.approx(4 * WIDTH * BAGS * (EACH + 1), rel=0.05)


@pytest.mark.parametrize(
    ("model", "example"), [(MessagePassing(), GRAPH), (Recommender(), CLICKS)], ids=["graph", "dlrm"]
)
def test_they_are_trained(model, example):
    read = read_step(Workload(model, example, mode="training_step", loss="mse"))
    assert all(one.is_used for one in read.step.parameters)
    written = {one.bytes for one in read.step.parameters}
    made = {call.call.output_bytes for call in read.step.calls if call.phase == "backward"}
    assert written <= made
