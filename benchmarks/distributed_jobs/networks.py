"""Small networks with random weights: an MLP, a CNN with residuals, a GPT."""

from __future__ import annotations

import torch
from torch import nn


class _Residual(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inside(x)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def mlp(width: int = 1024, depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)])


def cnn(width: int = 64) -> nn.Sequential:
    def conv(of: int, to: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(of, to, 3, stride, 1, bias=False), nn.BatchNorm2d(to), nn.ReLU())

    stages = [conv(3, width, 2)]
    for _ in range(2):
        stages += [_Residual(conv(width, width)), conv(width, 2 * width, 2), _Residual(conv(2 * width, 2 * width))]
        width *= 2
    return nn.Sequential(*stages, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)))


def gpt(width: int = 256, depth: int = 4, tokens: int = 2048, length: int = 64) -> nn.Sequential:
    def block() -> nn.Sequential:
        wide = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        return nn.Sequential(_Residual(_Attention(width, 4)), _Residual(wide))

    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, tokens))
    return nn.Sequential(nn.Embedding(tokens, width), *[block() for _ in range(depth)], head)


def make(name: str, examples: int = 0) -> tuple[nn.Sequential, torch.Tensor]:
    """Network of blocks, and a batch, of seed 0; ``examples``: how many, 0: the network's own number."""
    torch.manual_seed(0)
    if name == "mlp":
        return mlp(), torch.randn(examples or 256, 1024)
    if name.startswith("cnn"):
        return cnn(), torch.randn(examples or 8, 3, *SIDES[name])
    return gpt(), torch.randint(0, 2048, (examples or 8, LENGTHS[name]))


SIDES = {"cnn": (64, 64), "cnn-large": (96, 96)}
LENGTHS = {"gpt": 64, "gpt-long": 128}
NETWORKS = ("mlp", *SIDES, *LENGTHS)
