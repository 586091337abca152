"""The work of one rank is the step of ``predict_step`` at the same batch, whichever batches were read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from network import training_networks
from plans.sources.toy_source import T4, ByBytes, EagerRuntime, Scores, Skips, Workload, source_of
from plans.toy_source import ToySource
from torch import nn

from cdmpp import devices
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.step import export_step
from cdmpp.network.predict import predict_step
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource, at
from cdmpp.steps.from_prediction import graph_of

ONE = ParallelDegrees()


def check_same(source: PredictedSource, batch: int) -> None:
    found = source.work(batch, ONE)
    step = predict_step(at(source.workload, batch), T4, EagerRuntime(source.predictor))
    (rank,) = graph_of(step).ranks
    for got, expected in zip(found.rank.ops, rank.ops, strict=True):
        assert got.duration_s == pytest.approx(expected.duration_s, rel=1e-6)
        assert got.gap_s == pytest.approx(expected.gap_s, rel=1e-6, abs=1e-12)
        assert replace(got, duration_s=0.0, gap_s=0.0) == replace(expected, duration_s=0.0, gap_s=0.0)
    for name in ("gradients", "modules", "buffers"):
        assert getattr(found.rank, name) == getattr(rank, name)
    assert found.rank.start_s == pytest.approx(rank.start_s)
    assert found.memory == step.step.memory
    starts, free_s = list[float](), 0.0  # the host's seconds and those of the ops are all that starts follow from
    for dispatched_s, op in zip(np.cumsum(found.dispatch_s), rank.ops, strict=True):
        starts.append(max(dispatched_s, free_s))
        free_s = starts[-1] + op.duration_s
    gaps_s = [b - a - op.duration_s for a, b, op in zip(starts, starts[1:], rank.ops, strict=False)]
    np.testing.assert_allclose([op.gap_s for op in rank.ops[:-1]], gaps_s, rtol=1e-6, atol=1e-12)
    low, high = step.prediction.intervals[0.8]
    assert (found.low, found.high) == pytest.approx((low / step.latency_s, high / step.latency_s))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 300])
@pytest.mark.parametrize("network", [Skips, training_networks.Residual, training_networks.Depthwise])
def test_work_is_the_predicted_step_at_any_batch(network, batch):
    channels, size = (4, 8) if network is training_networks.Depthwise else (3, 16)
    source = source_of(network(), torch.randn(4, channels, size, size))
    check_same(source, batch)
    assert batch in (1, 2) or set(source._exported) == {2, 3}


@pytest.mark.parametrize("batch", [2, 5])
def test_a_step_that_two_readings_do_not_say_is_read_at_each_batch(batch):
    source = source_of(Scores(), torch.randn(4, 8))
    check_same(source, batch)
    assert batch in source._exported


def test_all_batches_are_priced_in_one_prediction():
    source = source_of(training_networks.Perceptron(), torch.randn(4, 8))
    source.prepare([2, 4, 8, 16], [ONE])
    asked = len(source.predictor.asked)
    for batch in (2, 4, 8, 16):
        source.work(batch, ONE)
    assert source.predictor.asked[:asked] == source.predictor.asked[:1]
    assert len(source.predictor.asked) == asked + 1, "and once for the warnings"


@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("name", ["bert_tiny", "zoo:mobilenet_v3_small"])
def test_a_network_of_a_name_is_exported_once(name, batch):
    source = source_of(name)
    check_same(source, batch)
    assert set(source._exported) == ({37, 38, 1} if batch == 1 else {37, 38})


class Odd(nn.Module):
    """A network with a size that is a multiple of 37 by chance: of a weight, or of what is between operators."""

    def __init__(self, inner: int, kernel: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 2, kernel), nn.Linear(inner, 4)

    def forward(self, x):
        return self.second(self.first(x).flatten(1))


@pytest.mark.parametrize(("inner", "kernel"), [(74, 4), (2 * 39, 2), (2 * 38, 3)])
def test_sizes_that_are_multiples_of_the_batch_by_chance_ask_for_another_export(inner, kernel):
    step = export_step(Workload(Odd(inner, kernel), torch.randn(37, 1, 40), mode="training_step"))
    assert (step.at(5) is None) == (inner == 74)


class Numbered(nn.Module):
    """It has two nodes of one name, whose arguments depend on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(2):
            x = x + torch.arange(len(x), dtype=x.dtype).unsqueeze(1)
        return self.linear(x)


def test_nodes_keep_their_names_at_another_batch():
    step = export_step(Workload(Numbered(), torch.zeros(37, 8), mode="training_step"))
    names, others = ([node.name for node in one.exported.graph.nodes] for one in (step, step.at(5)))
    assert sum("arange" in name for name in names) == 2
    assert others == names


@pytest.mark.parametrize("batch", [1, 7])
def test_a_step_at_another_batch_is_the_one_that_was_exported_there(batch):
    network = training_networks.Residual()
    there = export_step(Workload(network, torch.randn(37, 3, 32, 32), mode="training_step")).at(batch)
    here = export_step(Workload(network, torch.randn(batch, 3, 32, 32), mode="training_step"))
    found, expected = there.read(), here.read()
    assert [str(o) for o in found.operators.values()] == [str(o) for o in expected.operators.values()]
    assert found.step.memory == expected.step.memory and found.batch == batch
    assert found.graph.calls == expected.graph.calls


NETWORKS = (
    "torchvision:resnet50", "torchvision:vgg16", "torchvision:alexnet", "torchvision:mobilenet_v2",
    "torchvision:vit_b_16", "hf:gpt2", "hf:bert-base-uncased", "hf:TinyLlama-1.1B-Chat-v1.0",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_third_batch_of_full_networks_is_what_two_say(name):
    source = PredictedSource(Workload(name), T4, EagerRuntime(ByBytes()))
    for batch in (1, 48):
        check_same(source, batch)
    assert set(source._exported) == {1, 37, 38}


def test_degrees_that_do_not_suit_the_network_are_refused():
    source = source_of(training_networks.Perceptron(), torch.randn(4, 8))
    with pytest.raises(CdmppError, match="context=2: the network has no attention over one sequence"):
        source.work(4, ParallelDegrees(cp=2))
    with pytest.raises(CdmppError, match="spatial=2: the network has no convolution"):
        source.work(4, ParallelDegrees(spatial=2, filter=2))
    with pytest.raises(CdmppError, match="degrees spatial=2 and filter=2: these operators are known as divided along"):
        ToySource().work(4, ParallelDegrees(spatial=2, filter=2))
    with pytest.raises(UsageError, match="the batch of a rank is 0: expected"):
        source_of("torchvision:alexnet").work(0, ONE)


def test_sources_on_other_devices_share_exports(monkeypatch):
    workload = Workload("hf:prajjwal1/bert-tiny", mode="training_step")
    first = PredictedSource(workload, devices.get("a100"))
    first.work(4, ParallelDegrees())
    whole = PredictedSource(workload, devices.get("v100")).work(4, ParallelDegrees())
    monkeypatch.setattr("cdmpp.plans.sources.predicted.export_step", None)  # it would fail
    assert PredictedSource(workload, devices.get("v100"), like=first).work(4, ParallelDegrees()).rank == whole.rank
