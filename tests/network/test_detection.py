"""Detectors of torchvision: convolutions and products of a real run here that keeps as many boxes; what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp import cli
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.read import read_run
from cdmpp.network.source.read import read_network
from cdmpp.network.workload import Workload
from cdmpp.platform.torch_pair import import_torchvision

BOXES, SIDE = 24, 96


@pytest.fixture(scope="module")
def detection():
    pytest.importorskip("torchvision")
    return import_torchvision().models.detection


def detector(detection, name: str):
    """A small one, random weights, and an image."""
    torch.manual_seed(0)
    build = {
        "retinanet": detection.retinanet_resnet50_fpn,
        "fasterrcnn": detection.fasterrcnn_mobilenet_v3_large_320_fpn,
    }[name]
    options = {"min_size": SIDE, "max_size": SIDE, "num_classes": 5}
    if name == "fasterrcnn":
        options |= {"rpn_score_thresh": 0.0, "box_score_thresh": 0.0}
    model = build(weights=None, weights_backbone=None, **options).eval()
    return model, ([torch.randn(3, SIDE, SIDE)],)


class Real(TorchDispatchMode):
    """Counts convolutions by what they give, and products by their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._opname == "convolution":
            self.seen["conv", out.numel()] += 1
        elif func._opname in ("addmm", "linear"):
            self.seen["product", *out.shape] += 1
        return out


def predicted(read) -> Counter:
    found = Counter()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.name == "conv2d":
            found["conv", int(operator.written_elements)] += 1
        elif operator.name == "linear":
            found["product", *(operator.matmul[place] for place in (1, 3))] += 1
    return found


def named(read, name: str) -> list:
    return [read.operators[read.graph.calls[place].task_id] for place, one in read.stand_ins.items() if one == name]


@pytest.mark.parametrize("name", ["retinanet", "fasterrcnn"])
def test_its_calls_are_those_of_a_real_run_with_as_many_boxes(detection, name, monkeypatch):
    model, example = detector(detection, name)
    boxes = import_torchvision().ops.boxes
    monkeypatch.setattr(boxes, "nms", lambda _, scores, __: scores.argsort(descending=True)[:BOXES])
    with torch.no_grad(), Real() as real:
        model(*example)
    monkeypatch.undo()
    before = boxes.nms, boxes.batched_nms
    read = read_run(Workload(model, example, boxes=BOXES))
    assert (boxes.nms, boxes.batched_nms) == before
    products = {key: count for key, count in real.seen.items() if key[0] == "product"}
    assert {key: count for key, count in predicted(read).items() if key[0] == "product"} == products
    assert sum(count for key, count in predicted(read).items() if key[0] == "conv") == sum(
        count for key, count in real.seen.items() if key[0] == "conv"
    )
    if name == "fasterrcnn":
        assert ("product", BOXES, 1024) in products


def test_boxes_decide_what_the_head_runs(detection):
    model, example = detector(detection, "fasterrcnn")
    work = {}
    for boxes in (0, BOXES, 2 * BOXES):
        read = read_run(Workload(model, example, boxes=boxes))
        work[boxes] = sum(
            read.operators[c.task_id].flops for c in read.graph.calls if read.operators[c.task_id].name == "linear"
        )
        pooled, suppressed = named(read, "roi_align"), named(read, "nms")
        assert sum(one["batch"] for one in pooled) == boxes
        assert bool(suppressed) == bool(boxes)
    assert work[0] == 0
    assert work[2 * BOXES] == 2 * work[BOXES] == 2 * 2 * BOXES * (256 * 49 * 1024 + 1024 * 1024 + 1024 * (5 + 4 * 5))


def test_a_region_reads_four_pixels_for_each_of_four_samples_of_a_bin(detection):
    read = read_run(Workload(*detector(detection, "fasterrcnn"), boxes=BOXES))
    pooled = named(read, "roi_align")
    assert sum(one.written_elements for one in pooled) == BOXES * 256 * 7 * 7
    assert all(one.flops == 16 * one.written_elements for one in pooled)


def test_a_suppression_writes_a_bit_for_each_pair(detection):
    read = read_run(Workload(*detector(detection, "retinanet"), boxes=1000))
    (found,) = named(read, "nms")
    candidates = sum(min(1000, 5 * 9 * side**2) for side in (12, 6, 3, 2, 1))  # classes x anchors of each level
    assert 2 * candidates**2 / 8 < found.io_bytes < 2 * candidates**2 / 8 + 400 * candidates


class Selecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[x.sum(-1) > 0]
        places = torch.nonzero(x[:, 0] > 0, as_tuple=True)[0]
        return self.head(kept) + self.head(x[torch.where(x[:, 0] > 0)[0]]) + x[places]


def test_any_selection_keeps_as_many():
    read = read_run(Workload(Selecting(), torch.randn(64, 8), boxes=10))
    assert [str(read.operators[call.task_id]) for call in read.graph.calls].count("linear 10x8x8") == 2
    few = read_run(Workload(Selecting(), torch.randn(64, 8), boxes=1000))
    assert any(str(read) == "linear 64x8x8" for read in few.operators.values())


@pytest.mark.parametrize("name", ["retinanet", "fasterrcnn"])
def test_without_a_number_it_is_refused_with_what_to_give(detection, name):
    with pytest.raises(CdmppError, match="depends on the values of tensors.*boxes"):
        read_run(Workload(*detector(detection, name)))


def test_programs_that_are_compiled_take_no_boxes():
    with pytest.raises(UsageError, match="--runtime torch"):
        read_network(Workload("torchvision:resnet18", boxes=10))


@pytest.mark.parametrize("boxes", [-1, 1.5, "many"])
def test_boxes_are_a_whole_number(boxes):
    with pytest.raises(UsageError, match="boxes"):
        Workload("torchvision:resnet18", boxes=boxes)


def test_the_command_line_names_detectors(capsys):
    command = ["network", "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn", "--runtime", "torch", "--device", "h100"]
    assert cli.main([*command, "--boxes", "50", "--rows", "0"]) == 0
    assert "linear 50x12544x1024" in capsys.readouterr().out
    assert cli.main(command) == 2
    assert "--boxes" in capsys.readouterr().err


def test_boxes_of_a_network_that_selects_nothing_are_refused():
    with pytest.raises(UsageError, match="boxes is 4: the network selects nothing by the values of tensors"):
        read_run(Workload(nn.Linear(8, 8), torch.zeros(4, 8), boxes=4))
