"""Eight small networks of the kinds that people train, for comparisons with what PyTorch really runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


def cnn() -> Made:
    body = nn.Sequential(_conv(3, 8), nn.MaxPool2d(2), _conv(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(body, nn.Linear(16, 10)), (torch.randn(4, 3, 16, 16),)


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _conv(inside, outside, stride), _conv(outside, outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return functional.relu(self.second(self.first(x)) + self.short(x))


def resnet() -> Made:
    body = nn.Sequential(_conv(3, 8), Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(body, nn.Linear(16, 10)), (torch.randn(4, 3, 16, 16),)


class Block(nn.Module):
    """A transformer block with attention written out, before or after which the norms stand."""

    def __init__(self, width: int, heads: int, is_causal: bool = False, norms_first: bool = True) -> None:
        super().__init__()
        self.heads, self.is_causal, self.norms_first = heads, is_causal, norms_first
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def attend(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.mixed(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        if self.is_causal:
            later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Any) -> Any:
        if self.norms_first:
            x = x + self.attend(self.norms[0](x))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))
        x = self.norms[0](x + self.attend(x))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class Tokens(nn.Module):
    def __init__(self, blocks: list[nn.Module], width: int = 32, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(12, width)
        self.blocks, self.norm = nn.ModuleList(blocks), norm or nn.Identity()
        self.head = nn.Linear(width, 50, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def bert() -> Made:
    return Tokens([Block(32, 4, norms_first=False) for _ in range(2)]), (torch.randint(0, 50, (2, 12)),)


def gpt2() -> Made:
    blocks: list[nn.Module] = [Block(32, 4, is_causal=True) for _ in range(2)]
    return Tokens(blocks, norm=nn.LayerNorm(32)), (torch.randint(0, 50, (2, 12)),)


class RMSNorm(nn.Module):
    """As Llama has it: in float32, whatever comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norms = nn.ModuleList([RMSNorm(width), RMSNorm(width)])

    def turned(self, x: Any) -> Any:
        angles = torch.outer(torch.arange(x.shape[-2]).float(), torch.arange(x.shape[-1] // 2).float())
        angles = torch.cat([angles, angles], -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos().to(x.dtype) + torch.cat([-second, first], -1) * angles.sin().to(x.dtype)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        y = self.norms[0](x)
        query, key, value = (
            layer(y).view(batch, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = self.turned(query) @ self.turned(key).transpose(-1, -2) * (width // self.heads) ** -0.5
        shares = functional.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
        x = x + self.out((shares @ value).transpose(1, 2).reshape(batch, tokens, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def llama() -> Made:
    return Tokens([LlamaBlock(32, 4) for _ in range(2)], norm=RMSNorm(32)), (torch.randint(0, 50, (2, 12)),)


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 32, 4, 4)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.zeros(1, 17, 32))
        self.blocks, self.norm = nn.Sequential(Block(32, 4), Block(32, 4)), nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> Made:
    return Patches(), (torch.randn(2, 3, 16, 16),)


class Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.blocks = nn.Conv2d(3, 32, 4, 4), nn.Sequential(Mixer(16, 32), Mixer(16, 32))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.blocks(self.cut(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def mixer() -> Made:
    return Mixed(), (torch.randn(2, 3, 16, 16),)


class Stage(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.short = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.conv(functional.silu(self.norm(x))) + self.short(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.down = nn.Conv2d(3, 8, 3, padding=1), Stage(8, 16)
        self.lower, self.up, self.end = nn.Conv2d(16, 16, 3, 2, 1), Stage(16, 16), Stage(32, 8)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = self.down(self.begin(x))
        y = functional.interpolate(self.up(self.lower(x)), scale_factor=2.0, mode="nearest")
        return self.out(self.end(torch.cat([x, y], 1)))


def unet() -> Made:
    return UNet(), (torch.randn(2, 3, 16, 16),)


NETWORKS: dict[str, tuple[Callable[[], Made], str]] = {
    "cnn": (cnn, "cross_entropy"),
    "resnet": (resnet, "cross_entropy"),
    "bert": (bert, "cross_entropy"),
    "gpt2": (gpt2, "cross_entropy"),
    "llama": (llama, "cross_entropy"),
    "vit": (vit, "cross_entropy"),
    "mixer": (mixer, "cross_entropy"),
    "unet": (unet, "mse"),
}
"""Name -> the function that makes module and inputs, and its loss."""
