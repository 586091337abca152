"""Encoders with their decoders, and a diffusion block: the products of a real run here, at sizes of each side."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from tests.network.configs import write_configs
from tests.network.dispatched import Log

CONFIGS = {
    "t5": {"model_type": "t5", "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 128,
           "is_encoder_decoder": True},
    "whisper": {"model_type": "whisper", "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 128,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 96,
                "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0,
                "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "is_encoder_decoder": True},
    "bart": {"model_type": "bart", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 128,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
             "max_position_embeddings": 64, "decoder_start_token_id": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    return write_configs(tmp_path_factory.mktemp("configs"), CONFIGS)


def products(read) -> Counter:
    operators = (read.operators[call.task_id] for call in read.graph.calls)
    return Counter(("product", *one.matmul, "torch.float32") for one in operators if one.kind.family == "linear")


def real(model, example) -> Counter:
    """Products without attention."""
    with torch.no_grad(), Log() as log:
        model(*example)
    return Counter({key: n for key, n in log.seen.items() if key[0] == "product" and key[1] == 1})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tokens", [4, 12])
def test_both_sides_run_what_a_real_run_does(folder, name, tokens):
    sizes = {} if name == "whisper" else {"sequence": 20}
    workload = Workload(f"hf:{folder / name}", batch=2, decoder_sequence=tokens, **sizes)
    network, read = read_torch(workload), read_run(workload, "cpu")
    assert products(read) == real(network.model, network.example)
    rows = {key[2] for key in products(read)}
    assert rows == {2 * 20, 2 * tokens}  # Whisper's encoder halves its 40 steps
    head = [key for key in products(read) if key[4] == 128]
    assert [key[2] for key in head] == [2 * tokens]


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_cached_decoder_runs_what_a_real_run_does(folder, name, new):
    """Keys and values of the encoder's states are in the cache: its products do not run again."""
    sizes = {} if name == "whisper" else {"sequence": 20}
    decoder = {} if new == 1 else {"decoder_sequence": new}
    workload = Workload(f"hf:{folder / name}", batch=2, past=5, **sizes, **decoder)
    network, read = read_torch(workload), read_run(workload, "cpu")
    assert products(read) == real(network.model, network.example)
    assert {key[2] for key in products(read)} == {2 * new}
    states, width, layers = 20, 32, 3 if name == "whisper" else 2
    cached = 2 * layers * 2 * width * 4 * (5 + new + states)
    assert (read.tokens, read.cache_bytes) == (2 * new, cached)
    assert read.graph.input_bytes >= cached - 2 * layers * 2 * width * 4 * new


def test_the_encoder_by_itself_has_no_decoder(folder):
    both, encoder = (
        read_run(Workload(f"hf:{folder / 't5'}", sequence=20, decoder_sequence=tokens)) for tokens in (4, None)
    )
    assert products(encoder) <= products(both) and encoder.graph.weight_bytes < both.graph.weight_bytes


@pytest.mark.parametrize("name", ["t5-small", "openai/whisper-tiny"])
def test_names_have_both_sides(name):
    pytest.importorskip("transformers")
    read = read_run(Workload(f"hf:{name}", decoder_sequence=8))
    layers = {"t5-small": 6, "openai/whisper-tiny": 4}[name]
    width = {"t5-small": 512, "openai/whisper-tiny": 384}[name]
    of_width = sum(count for key, count in products(read).items() if key[2] == 8 and key[3] == width)
    assert of_width == layers * (3 + 1 + 1 + 1 + 1) + 1  # own attention, cross attention's ends, first of MLP; the head


@pytest.mark.parametrize(
    ("network", "tokens", "told"),
    [
        ("hf:gpt2", 4, "no encoder with a decoder for GPT2Model"),
        ("torchvision:resnet18", 4, "only networks of an hf: name"),
        ("hf:openai/whisper-tiny", 500, "500 tokens an example, but it has 448 positions"),
        ("hf:t5-small", 0, "decoder_sequence"),
    ],
)
def test_what_has_no_such_decoder_is_refused(network, tokens, told):
    with pytest.raises(CdmppError, match=told):
        read_run(Workload(network, decoder_sequence=tokens))


class Diffusion(nn.Module):
    """A block of a UNet: group norms, convolutions, attention over pixels and to a text, down and up again."""

    def __init__(self, channels: int = 16, text: int = 24) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(32, channels)
        self.query, self.out = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.key, self.value = nn.Linear(text, channels), nn.Linear(text, channels)
        self.down, self.up = nn.Conv2d(channels, channels, 3, 2, 1), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        batch, channels, height, width = hidden.shape
        pixels = hidden.flatten(2).transpose(1, 2)
        heads = [
            one.unflatten(-1, (4, -1)).transpose(1, 2) for one in (self.query(pixels), self.key(text), self.value(text))
        ]
        attended = self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        hidden = (pixels + attended).transpose(1, 2).reshape(batch, channels, height, width)
        return x + self.up(functional.interpolate(self.down(hidden), scale_factor=2.0))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_diffusion_block_is_its_products_convolutions_and_norm(kind):
    model, example = Diffusion(), (torch.randn(2, 16, 8, 8), torch.randn(2, 32), torch.randn(2, 7, 24))
    read = read_run(Workload(model, example), kind)
    assert products(read) == real(model, example)
    names = Counter(read.operators[call.task_id].name for call in read.graph.calls)
    assert names["conv2d"] == 3 and names["layer_norm"] == 1 and names["silu"] == 1
    (norm,) = [one for one in read.operators.values() if one.name == "layer_norm"]
    assert (norm["rows"], norm["cols"]) == (2 * 4, 4 * 64)  # a row is a group of an image
    convolutions = sum(
        read.operators[call.task_id].flops for call in read.graph.calls if read.operators[call.task_id].name == "conv2d"
    )
    assert convolutions == 2 * 2 * 16 * 16 * 9 * (64 + 16 + 64)
