"""Small hand-made networks: operators and shapes that the model libraries of the zoo do not bring."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(inputs: int = 256, hidden: int = 1024, layers: int = 3, outputs: int = 64) -> nn.Module:
    """Stack plain layers with ReLU."""
    widths = [inputs, *[hidden] * layers]
    blocks = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(hidden, outputs))


class Dlrm(nn.Module):
    """A recommender has embeddings, two MLPs and pairwise dot products (after Naumov et al. 2019)."""

    def __init__(self, dense: int = 13, tables: int = 8, rows: int = 1000, width: int = 64):
        super().__init__()
        self.dense = dense
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) ** 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, dense + a few indices) to (batch, 1)."""
        rows = (x[:, : len(self.tables)].abs() * 100).to(torch.int64).clamp(0, 999)
        bottom = self.bottom(x[:, : self.dense])
        vectors = torch.stack([bottom, *(table(rows[:, i]) for i, table in enumerate(self.tables))], 1)
        crossed = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, crossed], 1))


class _Recurrent(nn.Module):
    """Steps of a recurrent cell, written out; each of its ``gates`` sees the input and the state."""

    gates: int

    def __init__(self, inputs: int = 128, hidden: int = 256, steps: int = 2):
        super().__init__()
        self.hidden, self.steps = hidden, steps
        self.from_input = nn.Linear(inputs, self.gates * hidden)
        self.from_state = nn.Linear(hidden, self.gates * hidden)


class Lstm(_Recurrent):
    """This is a long short-term memory."""

    gates = 4

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs) to (batch, hidden)."""
        state = cell = torch.zeros(x.shape[0], self.hidden)
        for _ in range(self.steps):
            i, f, g, o = (self.from_input(x) + self.from_state(state)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return state


class Gru(_Recurrent):
    """This is a gated recurrent unit."""

    gates = 3

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs) to (batch, hidden)."""
        state = torch.zeros(x.shape[0], self.hidden)
        for _ in range(self.steps):
            a, b = self.from_input(x).chunk(3, 1), self.from_state(state).chunk(3, 1)
            reset, update = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            state = update * state + (1 - update) * torch.tanh(a[2] + reset * b[2])
        return state


def _double_convolution(inputs: int, outputs: int) -> nn.Module:
    first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class UNet(nn.Module):
    """A convolutional U-Net has two levels with skip connections and transposed convolutions."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.first = _double_convolution(3, width)
        self.second = _double_convolution(width, 2 * width)
        self.third = _double_convolution(2 * width, 4 * width)
        self.up_2, self.up_1 = (nn.ConvTranspose2d(2 * outputs, outputs, 2, 2) for outputs in (2 * width, width))
        self.merge_2, self.merge_1 = (_double_convolution(2 * outputs, outputs) for outputs in (2 * width, width))
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, size, size) to (batch, 2, size, size)."""
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        third = self.third(functional.max_pool2d(second, 2))
        merged = self.merge_2(torch.cat([second, self.up_2(third)], 1))
        return self.out(self.merge_1(torch.cat([first, self.up_1(merged)], 1)))


class DiffusionBlock(nn.Module):
    """A residual block of a diffusion U-Net has group norm, SiLU, convolutions and self-attention over pixels."""

    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, stride=4)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, size, size) to (batch, width, size / 4, size / 4)."""
        x = self.stem(x)
        batch, width, rows, columns = x.shape
        hidden = self.convolutions[0](functional.silu(self.norms[0](x)))
        x = x + self.convolutions[1](functional.silu(self.norms[1](hidden)))
        qkv = self.qkv(self.norms[2](x)).reshape(batch, 3, self.heads, width // self.heads, rows * columns)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        weights = torch.softmax(q.transpose(-1, -2) @ k * (width // self.heads) ** -0.5, -1)
        return x + self.out((v @ weights.transpose(-1, -2)).reshape(batch, width, rows, columns))


class Generator(nn.Module):
    """The generator of a DCGAN makes an image of a vector by transposed convolutions."""

    def __init__(self, latent: int = 100, width: int = 64):
        super().__init__()
        layers: list[nn.Module] = [nn.Unflatten(1, (latent, 1, 1)), nn.ConvTranspose2d(latent, 4 * width, 4)]
        for inputs, outputs in ((4 * width, 2 * width), (2 * width, width), (width, 3)):
            layers += [nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, latent) to (batch, 3, size, size)."""
        return self.layers(x)


class Video(nn.Module):
    """A video network runs 3-D convolutions over a few frames."""

    def __init__(self, width: int = 16):
        super().__init__()
        stem = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3))
        middle, last = nn.Conv3d(width, 2 * width, 3, (1, 2, 2), 1), nn.Conv3d(2 * width, 4 * width, 3, 2, 1)
        self.layers = nn.Sequential(stem, nn.ReLU(), middle, nn.ReLU(), last, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, size, size) to (batch, features)."""
        batch, _, rows, columns = x.shape
        frames = x[:, :, None].expand(batch, 3, 4, rows, columns)
        return self.layers(frames).mean((2, 3, 4))


class Tcn(nn.Module):
    """A temporal network has convolutions with growing dilation over a feature sequence."""

    def __init__(self, inputs: int = 64, width: int = 128, levels: int = 4):
        super().__init__()
        self.inputs = inputs
        self.stem = nn.Conv1d(inputs, width, 1)
        steps = [2**level for level in range(levels)]
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=step, dilation=step) for step in steps)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs x steps) to (batch, width)."""
        x = self.stem(x.reshape(x.shape[0], self.inputs, -1))
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return functional.max_pool1d(x, x.shape[-1])[..., 0]


class Stress(nn.Module):
    """Schedules fail on some shapes: prime sizes, wide channels, dilation, stride 3, depthwise 7 x 7, reductions."""

    def __init__(self, width: int = 61):
        super().__init__()
        self.odd = nn.Conv2d(3, width, 5, stride=3)
        self.dilated = nn.Conv2d(width, 2 * width, 3, dilation=2)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, 7, padding=3, groups=2 * width)
        self.point = nn.Conv2d(2 * width, 8 * width, 1)
        self.grouped = nn.Conv2d(8 * width, 8 * width, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, size, size) to (batch, features)."""
        x = torch.tanh(self.depthwise(functional.hardswish(self.dilated(functional.elu(self.odd(x))))))
        x = self.grouped(functional.gelu(self.point(x)))
        moments = torch.cat([x.mean((2, 3)), functional.max_pool2d(x, x.shape[2:])[..., 0, 0], x.var((2, 3))], 1)
        return torch.log_softmax(moments, -1)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "dlrm": Dlrm,
    "lstm": Lstm,
    "gru": partial(Gru, hidden=192),
    "unet": UNet,
    "diffusion_block": DiffusionBlock,
    "dcgan": Generator,
    "video": Video,
    "tcn": Tcn,
    "stress": Stress,
}
