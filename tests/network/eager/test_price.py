"""Networks by PyTorch's own kernels: backward passes, a host that dispatches, refusals. Operators' times are given."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import cli, devices
from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.single_price import KERNEL_S
from cdmpp.network.predict import predict_read
from cdmpp.network.workload import Workload
from cdmpp.operators.backward import backward_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.predict.predictor import Predictor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.drop(self.second(torch.relu(self.first(x)))))


class Given(Predictor):
    """A predictor that answers a millisecond a call, of which the device is busy ``share``."""

    trained_on, power_states = {"t4": devices.get("t4")}, {}

    def __init__(self, share: float) -> None:
        self.share = share

    def predict(self, operators, device):
        ones = np.ones(len(operators))
        intervals = {0.8: (0.5e-3 * ones, 2e-3 * ones)}
        return SimpleNamespace(latency_s=1e-3 * ones, intervals=intervals, flags=[()] * len(ones))

    def device_share(self, operators, device):
        return np.full(len(operators), self.share)

    def device_s(self, operators, device):
        return self.predict(operators, device).latency_s * self.device_share(operators, device)


def answered(share: float, train: bool = False, device: str = "t4"):
    read = read_run(Workload(Block(), torch.randn(8, 16), mode="forward_backward" if train else "inference"))
    return predict_read(read, devices.get(device), EagerRuntime(Given(share)))


def test_a_device_that_is_slower_than_its_host_runs_back_to_back():
    found = answered(share=0.9)
    assert [kernel.name for kernel in found.kernels] == [
        "linear 8x16x32", "relu 8x32", "linear 8x32x16", "add 8x16", "layer_norm 8x16",
    ]  # fmt: skip
    assert found.latency_s == pytest.approx(5 * (0.9e-3 + KERNEL_S) + 0.1e-3)  # the first waits for its dispatch
    low, high = found.intervals[0.8]
    assert low < found.latency_s < high and found.batch == 8
    assert not found.warnings


def test_linear_products_are_midway_between_the_states_of_power_of_a_board(monkeypatch):
    before = answered(share=1.0)
    monkeypatch.setattr(Given, "power_states", {"t4": 0.64})
    after = answered(share=1.0)
    for one, other in zip(before.kernels, after.kernels, strict=True):
        state = 0.64 if one.name.startswith("linear") else 1.0
        assert other.latency_s == pytest.approx(one.latency_s * state**0.5), one.name
        (low, high), (least, most) = one.intervals[0.8], other.intervals[0.8]
        assert (least, most) == pytest.approx((low * state, high))


def test_a_host_that_is_slower_than_its_device_decides():
    found = answered(share=0.1)
    assert found.latency_s == pytest.approx(5 * 0.9e-3 + 0.1e-3 + KERNEL_S)  # the last runs after the last dispatch
    assert any("the host decides" in warning for warning in found.warnings)
    assert answered(share=1e-6).kernels[0].latency_s == pytest.approx(KERNEL_S, rel=1e-3)


def test_calls_find_nothing_in_a_cache_that_others_ran_through():
    class Cached(Given):
        """A second for each TB in a cache of 4 MiB, four where it holds less than a half."""

        def predict(self, operators, device):
            moved = np.array([one.io_bytes for one in operators])
            found = super().predict(operators, device)
            found.latency_s = 1e-12 * moved * np.where(moved > 2**23, 4.0, 1.0)
            return found

    read = read_run(Workload(nn.Sequential(nn.Linear(512, 512), nn.ReLU()), torch.randn(1024, 512)))
    one = {
        kernel.op_class: kernel for kernel in predict_read(read, devices.get("t4"), EagerRuntime(Cached(1.0))).kernels
    }
    moved = 2 * 4 * 1024 * 512
    assert one["elementwise"].latency_s == pytest.approx(4e-12 * moved + KERNEL_S)
    assert one["dense"].latency_s == pytest.approx(1e-12 * (moved + 4 * 512 * 513) + KERNEL_S)
    on_cpu = predict_read(read, devices.get("xeon-icelake"), EagerRuntime(Cached(1.0))).kernels
    assert min(kernel.latency_s for kernel in on_cpu) == pytest.approx(1e-12 * moved)


def test_a_cpu_is_its_own_host():
    found = answered(share=0.1, device="xeon-icelake")
    assert found.latency_s == pytest.approx(5 * 1e-3) and not any(
        "host decides" in warning for warning in found.warnings
    )


def test_a_training_step_has_dropout_and_a_backward_pass_in_the_opposite_order():
    read = read_run(Workload(Block(), torch.randn(8, 16), mode="forward_backward"))
    names = [str(read.operators[call.task_id]) for call in read.graph.calls]
    forward = ["linear 8x16x32", "relu 8x32", "linear 8x32x16", "mul 8x16", "add 8x16", "layer_norm 8x16"]
    assert names[:6] == forward
    assert names[6:10] == ["layer_norm 8x16", "add 1x16", "add 1x16", "add 8x16"]
    assert names[10:15] == ["linear 8x16x32 bias=0", "linear 16x8x32 bias=0", "mean 16x8", "add 1x512", "add 1x16"]
    assert not any("8x32x16" in name for name in names[17:])  # the batch itself needs no gradient
    read_by = {source for call in read.graph.calls[6:] for source in call.inputs}
    assert {1, 4} <= read_by and 0 not in read_by  # of the forward pass: what products, norms and relu keep
    assert any("optimizer" in warning for warning in answered(0.9, train=True).warnings)
    assert "training" in answered(0.9, train=True).schedule


def test_values_that_two_read_get_their_gradients_summed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            y = torch.relu(self.first(x))
            return torch.tanh(y) + torch.exp(y)

    read = read_run(Workload(Twice(), torch.randn(4, 4), mode="forward_backward"))
    names = [str(read.operators[call.task_id]) for call in read.graph.calls]
    assert names.count("add 1x16") == 2 and names.count("relu 4x4") == 1  # and the weight's, to what it has


def test_gradients_of_products_are_two_products_of_as_much_work():
    for operator in (
        EagerOperator.parse("linear", "64x128x256"),
        EagerOperator.parse("bmm", "8x64x32x16"),
        EagerOperator.parse("conv2d", "4x16x32x28x3"),
    ):
        made = [one for one, *_ in backward_of(operator) if one.kind.family == operator.kind.family]
        assert len(made) == 2 and {one.flops for one in made} == {operator.flops}


def test_half_precision_moves_half():
    read = read_run(Workload(Block(), torch.randn(8, 16), precision="fp16"))
    assert {operator.dtype for operator in read.operators.values()} == {"float16"}
    assert read.graph.weight_bytes == sum(value.numel() for value in Block().parameters()) * 2


def test_what_a_network_computes_in_single_precision_stays_so():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16)

        def forward(self, x):
            return torch.softmax(self.first(x).float(), -1).to(x.dtype)

    given = Careful()
    read = read_run(Workload(given, torch.randn(8, 16), precision="fp16"))
    named = [str(read.operators[call.task_id]) for call in read.graph.calls]
    assert named == [
        "linear 8x16x16 float16", "copy 8x16 float32 of float16", "softmax 8x16", "copy 8x16 float16 of float32"
    ]  # fmt: skip
    assert given.first.weight.dtype is torch.float32


def test_a_frozen_batch_norm_sums_before_it_scales():
    made = backward_of(EagerOperator.parse("batch_norm", "64x49"))
    assert [(str(one.operator), one.of) for one in made] == [("mean 64x49", "weight"), ("mul 64x49", "inputs")]


def test_an_encoder_without_a_mask_makes_none():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    network = transformers.BertModel(transformers.BertConfig(vocab_size=100, attn_implementation="eager", **sizes))
    tokens = torch.ones(2, 8, dtype=torch.int64)
    asked = transformers.masking_utils.is_torchdynamo_exporting
    bare = read_run(Workload(network, {"input_ids": tokens}))
    masked = read_run(Workload(network, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}))
    scores = [[op for op in map(str, read.operators.values()) if op.endswith("32x8")] for read in (bare, masked)]
    assert "softmax 32x8" in scores[0] and not any("broadcast" in op for op in scores[0])
    assert "add_broadcast 32x8" in scores[1]
    assert transformers.masking_utils.is_torchdynamo_exporting is asked


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_decoder_masks_within_its_fused_attention_and_repeats_heads_where_it_must(dtype):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.LlamaConfig(vocab_size=100, num_key_value_heads=2, use_cache=False, **sizes)
    read = read_run(
        Workload(
            transformers.LlamaForCausalLM(config), {"input_ids": torch.ones(2, 16, dtype=torch.int64)}, dtype=dtype
        )
    )
    names = [call.name for call in read.graph.calls]
    assert not any(name.startswith(("cumsum", "diff", "le", "expand", "reshape")) for name in names)
    operators = [str(read.operators[call.task_id]) for call in read.graph.calls]
    if dtype == "float16":
        assert "cudnn_attention 2x4x16x16x8 kv_heads=2 causal=1 float16" in operators
        assert not any("permute" in name for name in operators)
    else:  # no fused kernel has groups of heads in float32
        assert "bmm 8x16x8x16 transposed=1" in operators
        assert sum(name.startswith("permute 2x") or name == "copy 128x8" for name in operators) <= 2


def test_a_device_that_no_training_had_is_told():
    assert any("never saw h100" in warning for warning in answered(0.9, device="h100").warnings)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--runtime torch --schedule untuned", "is of --runtime tvm"),
        ("--runtime torch --measure", "not timed here yet"),
        ("--train", "is of --runtime torch"),
    ],
)
def test_options_of_the_other_runtime_are_refused(words, told, capsys):
    assert cli.main(["network", "resnet18", "--device", "t4", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_an_unknown_runtime_is_refused():
    with pytest.raises(CdmppError, match="one of tvm, torch"):
        cdmpp.predict_network("resnet18", device="t4", runtime="onnx")
