"""Small networks that are trained: each has what one of the full networks has, and compiles in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cdmpp.programs.models import import_transformers

TOKENS, WIDTH, WORDS = 8, 32, 64


class Perceptron(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Residual(nn.Module):
    """A stem with pooling, and a block with a stride and a skip, as ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.first, self.first_norm = nn.Conv2d(4, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.second, self.second_norm = nn.Conv2d(12, 12, 3, 1, 1), nn.BatchNorm2d(12)
        self.skip = nn.Conv2d(4, 12, 1, 2)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        inner = functional.relu(self.first_norm(self.first(x)))
        x = functional.relu(self.second_norm(self.second(inner)) + self.skip(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Depthwise(nn.Module):
    """A block as of MobileNetV2: expanded, one filter a channel, narrowed; grouped filters and average pooling, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6(),
            nn.Conv2d(12, 12, 3, 2, 1, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU6(), nn.Dropout(0.2),
            nn.Conv2d(12, 8, 3, 1, 1, groups=2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 2 * 2, 5),
        )  # fmt: skip

        for place in (1, 4):  # else a scale is taken off again by the next batch norm: its gradient is all rounding
            nn.init.normal_(self.body[place].bias)

    def forward(self, x):
        return self.body(x)


def _transformer(config: str, build: str, **arguments: Any) -> Any:
    library = import_transformers()
    made = getattr(library, config)(**arguments)
    made._attn_implementation = "sdpa"
    inner = getattr(library, build)(made)

    class FirstOutput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x, **({} if build == "ViTModel" else {"use_cache": False} if "LM" in build else {}))[0]

    return FirstOutput()


def _gpt() -> Any:
    sizes = {"n_embd": WIDTH, "n_layer": 1, "n_head": 2, "vocab_size": WORDS, "n_positions": TOKENS}
    return _transformer("GPT2Config", "GPT2LMHeadModel", **sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)


def _llama() -> Any:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    return _transformer("LlamaConfig", "LlamaForCausalLM", **sizes, intermediate_size=48, vocab_size=WORDS)


def _bert() -> Any:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return _transformer("BertConfig", "BertModel", **sizes, **none, vocab_size=WORDS, max_position_embeddings=TOKENS)


def _vit() -> Any:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    return _transformer("ViTConfig", "ViTModel", **sizes, image_size=16, patch_size=8)


_MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (Perceptron, (4, 8)),
    "residual": (Residual, (4, 3, 32, 32)),
    "depthwise": (Depthwise, (4, 4, 8, 8)),
    "gpt": (_gpt, ()),
    "llama": (_llama, ()),
    "bert": (_bert, ()),
    "vit": (_vit, (2, 3, 16, 16)),
}
NAMES = tuple(_MADE)


def small(name: str, seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """The network in training mode, and what it is called with: images, or tokens [2, TOKENS]."""
    torch.manual_seed(seed)
    build, shape = _MADE[name]
    model = build().train()
    return model, (torch.randn(*shape) if shape else torch.randint(0, WORDS, (2, TOKENS)),)
