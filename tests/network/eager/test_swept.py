"""Networks at many sizes: whatever is derived is what the same sizes give when they are read by themselves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from textwrap import dedent

import pytest

from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager import swept
from cdmpp.network.eager.swept import SweptReader, difference
from cdmpp.network.workload import Workload

NETWORKS = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.q, self.kv = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 16)
            self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 50)

        def forward(self, x):
            x = self.table(x)
            q = self.q(self.norm(x)).unflatten(-1, (4, 8)).transpose(1, 2)
            k, v = (one.unflatten(-1, (1, 8)).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
            k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(x + mixed.transpose(1, 2).flatten(2))

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            if x.shape[1] > 10:
                return self.one(x)
            return self.two(self.one(x)) if x.shape[0] % 2 else self.two(self.two(self.two(x)))

    class Loop(Branch):
        def forward(self, x):
            for _ in range(x.shape[1]):
                x = self.one(x)
            return x

    class Views(nn.Module):
        def forward(self, x):
            return torch.cat([(y.transpose(0, 1).reshape(-1, 4) * 2).sum(1) for y in x.chunk(3, 1)])

    class Two(nn.Module):
        def forward(self, x, mask):
            return {"y": torch.where(mask, x.softmax(-1), 0.0).tanh()}

    class Contrast(nn.Module):
        def forward(self, x):
            return nn.functional.cross_entropy((x @ x.mT).flatten(0, 1), x.argmax(-1).flatten())

    def contrast(batch=2, sequence=8):
        return Contrast(), (torch.zeros(batch, sequence, 8),)

    def attention(batch=2, sequence=8):
        return Attention(), (torch.zeros(batch, sequence, dtype=torch.long),)

    def branch(batch=2, sequence=8):
        return Branch(), (torch.zeros(batch, sequence, 8),)

    def loop(batch=2, sequence=8):
        return Loop(), (torch.zeros(batch, sequence, 8),)

    def views(batch=2, sequence=8):
        return Views(), (torch.zeros(batch, sequence, 8),)

    def two(batch=2, sequence=8):
        return Two(), {"x": torch.zeros(batch, 3, sequence, sequence), "mask": torch.ones(sequence, dtype=torch.bool)}

    def square(batch=2, sequence=2):
        return nn.Linear(8, 8), (torch.zeros(batch, sequence**2, 8),)
"""


@pytest.fixture
def at(tmp_path):
    (tmp_path / "nets.py").write_text(dedent(NETWORKS))

    def workload(name, mode="inference"):
        path = name if name in ZOO else f"{tmp_path}/nets.py:{name}"
        return lambda point: Workload(path, batch=point["batch"], sequence=point.get("seq"), mode=mode)

    return workload


ZOO = ("bert_tiny", "torchvision:mobilenet_v3_small", "torchvision:resnet18")


def read(at, **axes):
    points = [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())]
    reader = SweptReader("gpu", at)
    found = list(reader.read(points))
    assert [one.point for one in found if one.point not in points] == [] and len(found) == len(points)
    for one in found:
        assert difference(one.read, reader.read_one(one.point)) == "", one.point
    return reader, found


@pytest.mark.parametrize(
    ("name", "seqs"),
    [
        ("attention", (1, 2, 5, 64)),
        ("views", (3, 6, 7, 16)),
        ("two", (2, 5, 16)),
        ("bert_tiny", (16, 17)),
        ("torchvision:mobilenet_v3_small", ()),
    ],
)
def test_derived_points_have_the_calls_of_points_read_alone(at, name, seqs):
    reader, found = read(at(name), batch=(1, 2, 3, 8), **({"seq": seqs} if seqs else {}))
    assert sum(one.is_derived for one in found) >= len(found) // 2, reader.reasons


@pytest.mark.parametrize(
    ("precision", "mode"),
    [("bf16-autocast", "inference"), ("bf16-autocast", "forward_backward"), ("fp16", "inference")],
)
def test_points_of_autocast_and_of_halves_are_derived_too(at, mode, precision):
    workload = at("attention", mode)
    reader, found = read(lambda point: replace(workload(point), precision=precision), batch=(2, 3), seq=(4, 6))
    assert all(one.is_derived for one in found), reader.reasons
    (family,) = reader.families
    assert not family.symbolic.is_cast, "its casts are nodes of the graph with open sizes"


def test_what_autocast_takes_apart_is_cast_at_each_point(at):
    workload = at("contrast")
    reader, found = read(lambda point: replace(workload(point), precision="bf16-autocast"), batch=(2, 3, 5))
    assert all(one.is_derived for one in found) and reader.families[0].symbolic.is_cast


def test_a_branch_on_a_size_gets_a_graph_of_its_own(at):
    reader, found = read(at("branch"), batch=(2, 3, 4, 5), seq=(4, 8, 12, 16))
    assert len({len(one.read.graph.calls) for one in found}) == 3
    assert not reader.reasons and all(one.is_derived for one in found)


def test_a_loop_over_a_size_is_read_point_by_point_and_says_so(at, monkeypatch):
    monkeypatch.setattr(swept, "_MOST_EXPORTS", 2)
    reader, found = read(at("loop"), batch=(2,), seq=(2, 3, 4, 5))
    assert [len(one.read.graph.calls) for one in sorted(found, key=lambda one: one.point["seq"])] == [2, 3, 4, 5]
    assert "runs other operators there" in next(iter(reader.reasons))


def test_an_axis_that_decides_nothing_is_named_with_two_of_its_sizes(at):
    workload = at("contrast")
    reader = SweptReader("gpu", lambda point: replace(workload({"batch": point["batch"]}), sequence=None))
    with pytest.raises(UsageError, match=r"axis seq decides nothing: its inputs are the same at 4 and at 6"):
        list(reader.read([{"batch": 2, "seq": size} for size in (4, 6)]))


def test_inputs_that_grow_on_no_line_are_read_point_by_point_and_say_so(at):
    reader, found = read(at("square"), batch=(2,), seq=(2, 3, 5))
    assert not any(one.is_derived for one in found)
    assert "a dimension of its inputs is 4 at seq 2 and 9 at 3" in next(iter(reader.reasons))


@pytest.mark.parametrize("mode", ["forward_backward", "training_step"])
def test_backward_passes_are_derived_too(at, mode):
    reader, found = read(at("attention", mode), batch=(2, 3, 4), seq=(4, 6))
    assert all(one.is_derived for one in found), reader.reasons


def test_what_differs_from_a_reading_is_not_used(at, monkeypatch):
    monkeypatch.setattr(swept, "difference", lambda *_: "a call is another")
    reader = SweptReader("gpu", at("branch"))
    found = list(reader.read([{"batch": size, "seq": 4} for size in (2, 4)]))
    assert not any(one.is_derived for one in found)
    assert "differs from that of batch 4, seq 4: a call is another" in next(iter(reader.reasons))


def test_sizes_that_no_input_can_have_are_refused_before_anything_is_read():
    reader = SweptReader("gpu", lambda point: Workload("hf:gpt2", batch=1, sequence=point["seq"]))
    with pytest.raises(UsageError, match="1,024 positions"):
        reader.check({"seq": 2048})
    reader = SweptReader("gpu", lambda point: Workload("torchvision:resnet18", sequence=point["seq"]))
    with pytest.raises(CdmppError, match="its input is image, not tokens"):
        reader.check({"seq": 8})
