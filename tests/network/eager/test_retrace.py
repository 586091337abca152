"""A network whose Python runs again at other sizes is read as one that is exported there; else it is said so."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from cdmpp.network.eager.kept_reads import KeptReads
from cdmpp.network.eager.noted_calls import UnlikeError
from cdmpp.network.eager.per_example import at_other_batch
from cdmpp.network.eager.read import export_run, read_run
from cdmpp.network.eager.retrace import Retrace
from cdmpp.network.eager.swept import difference
from cdmpp.network.eager.without_values import hollow, told
from cdmpp.network.workload import Workload
from cdmpp.programs.exported import export

FEW = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1")
MORE = (
    "alexnet", "convnext_tiny", "deeplabv3_resnet50", "densenet121", "efficientnet_b0", "efficientnet_v2_s",
    "fcn_resnet50", "googlenet", "inception_v3", "lraspp_mobilenet_v3_large", "maxvit_t", "mnasnet0_5", "mobilenet_v2",
    "regnet_y_400mf", "resnet50", "resnext50_32x4d", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_16", "wide_resnet50_2",
)  # fmt: skip


def retrace_of(model: nn.Module, *inputs: torch.Tensor, place: str = "sm_80") -> Retrace:
    noted = []

    def exporter(model, inputs, **options):
        noted.append((model, inputs, options))
        return export(model, inputs, **options)

    run = export_run(Workload(model, example_inputs=inputs), place, exporter)
    return Retrace(run, *noted[0])


def check(model: nn.Module, shapes: list[tuple[int, ...]], place: str = "sm_80") -> None:
    """The first shape is exported; the others have to be read as fresh exports are."""
    again = retrace_of(model, torch.randn(shapes[0]), place=place)
    for shape in shapes:
        found = again.at((torch.empty(shape, device="meta"),)).read()
        assert difference(found, read_run(Workload(model, example_inputs=(torch.randn(shape),)), place)) == ""


class Calls(nn.Module):
    """It is one function, with a weight."""

    def __init__(self, run) -> None:
        super().__init__()
        self.run, self.weight = run, nn.Parameter(torch.randn(8, 8))
        self.register_buffer("table", torch.arange(64).reshape(8, 8))

    def forward(self, x):
        return self.run(self, x)


def in_place(own, x):
    y = x @ own.weight
    y += 1
    y.relu_()
    return y.add_(x)


def halves(own, x):
    low, high = x.chunk(2, dim=1)
    values, places = x.topk(3, dim=1)
    return low * high, values.sum(1), places


def masked(own, x):
    length = x.shape[0]
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    return (x @ x.t()).masked_fill(~mask, -math.inf).softmax(-1) @ x, own.table[:, 0] + length


def looped(own, x):
    return torch.stack([row * 2 for row in x.unbind(0)])


def branching(own, x):
    return (x @ own.weight).relu() if x.shape[0] > 4 else x.sigmoid()


@pytest.mark.parametrize(
    "run",
    [
        in_place, halves, masked,
        lambda own, x: (x.view(x.size(0), 2, -1).transpose(1, 2).reshape(-1, 4) / x.shape[0]).split(x.shape[0]),
        lambda own, x: torch.cat([x, own.weight[: len(x)]]) if len(x) < 8 else torch.cat([x, own.weight[:8]]),
        lambda own, x: nn.functional.dropout(x, 0.5, own.training) @ own.weight.detach(),
        lambda own, x: x.new_zeros(x.shape[0], 3) + x[:, :3].to(torch.float32),
        lambda own, x: own.table[x.argmax(1) % 8].float() @ own.weight,
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_other_batches_are_read_as_fresh_exports_are(run, batch):
    model = Calls(run).eval()
    try:
        check(model, [(batch, 8), (2, 8), (5, 8), (6, 8), (3, 8)])
    except UnlikeError:
        assert batch == 1  # one example has other strides, so that views become copies


@pytest.mark.parametrize("run", [branching, looped])
def test_what_branches_on_the_batch_has_to_be_exported(run):
    again = retrace_of(Calls(run).eval(), torch.randn(3, 8))
    with pytest.raises(UnlikeError, match="which the export does not have there|other operators"):
        again.at((torch.empty(7, 8, device="meta"),))
    assert again.at((torch.empty(3, 8, device="meta"),)).batch == 3


def test_values_and_unknown_tensors_are_not_read_again():
    constant = torch.randn(8)
    for run in (lambda own, x: x + constant, lambda own, x: x + torch.tensor(2.0)):
        with pytest.raises(UnlikeError):
            retrace_of(Calls(run).eval(), torch.randn(3, 8))
    again = retrace_of(Calls(lambda own, x: x @ own.weight).eval(), torch.randn(3, 8))
    with pytest.raises(UnlikeError, match="same reduction dim|mat1 and mat2"):
        again.at((torch.empty(3, 9, device="meta"),))


def test_a_network_that_is_trained_or_cast_is_not_read_again():
    def exporter(model, inputs, **options):
        noted.append((model, inputs, options))
        return export(model, inputs, **options)

    for told_of in ({"mode": "forward_backward"}, {"precision": "bf16-mixed"}):
        noted = []
        run = export_run(Workload("resnet18", batch=2, **told_of), "sm_80", exporter)
        with pytest.raises(UnlikeError, match="more than its Python"):
            Retrace(run, *noted[0])


@pytest.mark.parametrize("place", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", FEW)
def test_networks_of_torchvision_are_read_as_fresh_exports_are(name, place):
    _check_name(name, place, (1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_networks_of_torchvision_are_read_as_fresh_exports_are(name):
    _check_name(name, "sm_80", (1, 2, 5))
    _check_name(name, "sm_80", (4, 3))


def _check_name(name, place, batches):
    kept = KeptReads()
    for batch in batches:
        asked = Workload(f"torchvision:{name}", batch=batch)
        assert difference(kept.read(asked, place), read_run(asked, place)) == ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_and_batch_norms_give_at_another_batch_what_torch_says(data):
    draw = data.draw
    rank, low, high = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    channels, sizes = draw(st.sampled_from([1, 2, 4])), draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    out, kernel, groups = draw(st.sampled_from([2, 4])), draw(st.integers(1, 3)), draw(st.sampled_from([1, channels]))
    padding, stride = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    assume(all(size + 2 * padding >= kernel for size in sizes) and out % groups == 0)
    norm, last = draw(st.booleans()), draw(st.booleans()) and rank == 2
    if norm:
        target = torch.ops.aten.batch_norm.default
        rest = [torch.empty(channels, device="meta") for _ in range(4)]
        trains = draw(st.booleans())
        assume(not trains or min(low, high) * math.prod(sizes) > 1)  # of one value torch refuses to learn
        given_ = (None, *[None] * 4, trains, 0.1, 1e-5, False)
    else:
        target = getattr(torch.ops.aten, f"conv{rank}d").default
        rest = [
            torch.empty((out, channels // groups, *[kernel] * rank), device="meta"),
            torch.empty(out, device="meta"),
        ]
        given_ = (None, None, None, *[stride] * rank, *[padding] * rank, *[1] * rank, groups)

    def made(batch):
        x = torch.empty((batch, channels, *sizes), device="meta")
        x = x.to(memory_format=torch.channels_last) if last else x
        with torch._subclasses.fake_tensor.FakeTensorMode(), torch.no_grad():
            own = [torch.empty_strided(one.shape, one.stride()) for one in (x, *rest)]
            if norm:
                return x, hollow(target(*own, *given_[5:]))
            return x, hollow(target(*own, [stride] * rank, [padding] * rank, [1] * rank, groups))

    (before, first), (now, second) = made(low), made(high)
    found = at_other_batch(target, given_, given_, [before, *rest], [now, *rest], [first])
    assert found is None or told(found) == told(second)
    if not last and not (norm and given_[5]) and len(sizes) > 0 and min(sizes) > 1 and channels > 1:
        assert found is not None


def test_one_example_without_an_axis_for_it_is_no_batch():
    weight = torch.empty((8, 4, 3), device="meta")
    given_ = (None, None)
    for own, other in (((4, 9), (5, 9)), ((4, 9), (4, 9))):
        tensors = [torch.empty(own, device="meta"), weight], [torch.empty(other, device="meta"), weight]
        made = [torch.empty((8, 7), device="meta")]
        assert at_other_batch(torch.ops.aten.conv1d.default, given_, given_, *tensors, made) is None
