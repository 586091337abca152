"""Layers with settings that the samples of torch's operator tests lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Of(nn.Module):
    def __init__(self, function: Any, *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.inner, *inputs)


def layers() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    """``(name, module in eval mode, inputs)``."""
    torch.manual_seed(0)
    for place, (module, *inputs) in enumerate(_all()):
        named = type(module).__name__ if not isinstance(module, Of) else module.function.__name__
        yield f"layer{place}_{named}", module.eval(), tuple(inputs)


def _all() -> Iterator[tuple[Any, ...]]:
    yield from _products()
    yield from _pools()
    yield from _sampled()
    yield from _recurrent()
    yield from _norms()


def _products() -> Iterator[tuple[Any, ...]]:
    image, line, cube = torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9), torch.randn(1, 4, 5, 6, 4)
    for options in (
        {}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}, {"groups": 4, "padding": 1}, {"bias": False},
        {"padding": "same"}, {"padding": "same", "dilation": 2}, {"padding": 1, "padding_mode": "circular"},
        {"padding": 1, "padding_mode": "reflect"}, {"padding": 1, "padding_mode": "replicate"}, {"stride": 3},
    ):  # fmt: skip
        yield nn.Conv1d(4, 8, 3, **options), line
        yield nn.Conv2d(4, 8, 3, **options), image
        yield nn.Conv2d(4, 8, (3, 2), **options), image
        if options.get("padding_mode") != "reflect":
            yield nn.Conv3d(4, 8, 3, **options), cube
    yield nn.Conv2d(4, 8, 3), image[0]
    for options in (
        {}, {"stride": 2}, {"stride": 2, "output_padding": 1}, {"stride": 2, "padding": 1, "output_padding": 1},
        {"groups": 2}, {"dilation": 2}, {"bias": False, "stride": 3}, {"groups": 4, "stride": 2},
        {"groups": 2, "dilation": 2, "stride": 2, "padding": 1},
    ):  # fmt: skip
        yield nn.ConvTranspose1d(4, 8, 3, **options), line
        yield nn.ConvTranspose2d(4, 8, 3, **options), image
        yield nn.ConvTranspose2d(4, 8, (3, 2), **options), image
        yield nn.ConvTranspose3d(4, 8, 2, **options), cube
    for options in ({}, {"bias": False}):
        for shape in ((3, 8), (2, 3, 8), (8,)):
            yield nn.Linear(8, 5, **options), torch.randn(*shape)
    yield nn.Bilinear(4, 5, 3), torch.randn(2, 4), torch.randn(2, 5)
    yield nn.Embedding(10, 4), torch.randint(0, 10, (2, 3))
    yield nn.Embedding(10, 4, padding_idx=0), torch.randint(0, 10, (2, 3))
    yield nn.EmbeddingBag(10, 4, mode="sum"), torch.randint(0, 10, (2, 3))
    for causal in (False, True):
        for heads in (1, 2):
            q = torch.randn(2, heads, 5, 8)

            def attention(a: Any, b: Any, c: Any, causal: bool = causal) -> Any:
                return F.scaled_dot_product_attention(a, b, c, is_causal=causal)

            yield Of(attention), q, torch.randn_like(q), torch.randn_like(q)
    yield nn.MultiheadAttention(8, 2, batch_first=True), *(torch.randn(2, 5, 8) for _ in range(3))
    yield nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)
    for operands in ("ij,jk->ik", "bij,bjk->bik", "bi,bj->bij", "ii->i", "ij->ji", "bhid,bhjd->bhij"):
        left, _, _ = operands.partition("->")
        sizes = {"i": 3, "j": 4, "k": 5, "b": 2, "h": 2, "d": 6}

        def einsum(*values: Any, equation: str = operands) -> Any:
            return torch.einsum(equation, *values)

        yield Of(einsum), *(torch.randn(*(sizes[one] for one in part)) for part in left.split(","))
    yield nn.Fold((6, 6), 3, stride=3), torch.randn(1, 4 * 9, 4)
    for options in ({}, {"stride": 2}, {"padding": 1, "dilation": 2}):
        yield nn.Unfold(3, **options), torch.randn(1, 2, 8, 7)


def _pools() -> Iterator[tuple[Any, ...]]:
    image = torch.randn(2, 3, 9, 8)
    for kernel in (2, 3, (3, 2)):
        for options in (
            {}, {"stride": 2}, {"stride": 2, "padding": 1}, {"stride": 2, "ceil_mode": True},
            {"stride": 2, "padding": 1, "ceil_mode": True}, {"stride": 3, "ceil_mode": True},
        ):  # fmt: skip
            yield nn.MaxPool2d(kernel, **options), image
            yield nn.AvgPool2d(kernel, **options), image
            yield nn.AvgPool2d(kernel, count_include_pad=False, **options), image
            if kernel != (3, 2):
                yield nn.MaxPool1d(kernel, **options), image[0]
                yield nn.AvgPool1d(kernel, **options), image[0]
                yield nn.MaxPool3d(kernel, **options), image[None]
                yield nn.AvgPool3d(kernel, **options), image[None]
    yield nn.MaxPool2d(2, dilation=2), image
    yield nn.MaxPool2d(2, return_indices=True), image
    yield nn.AvgPool2d(2, divisor_override=3), image
    yield nn.LPPool2d(2, 2), image.abs()
    for size in (1, 3, 4, (3, 2), (None, 2), 8, (9, 8), (12, 16)):
        yield nn.AdaptiveAvgPool2d(size), image
        yield nn.AdaptiveMaxPool2d(size), image
    for length in (1, 2, 3, 4, 8, 16, 5):
        yield nn.AdaptiveAvgPool1d(length), image[0]
        yield nn.AdaptiveAvgPool3d(length), image[None]
        yield nn.AdaptiveMaxPool1d(length), image[0]


def _sampled() -> Iterator[tuple[Any, ...]]:  # noqa: C901 - a list
    image, grid = torch.randn(1, 3, 8, 6), torch.rand(1, 5, 7, 2) * 2.4 - 1.2
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):

                def grid_sample(a: Any, b: Any, how: Any = (mode, padding, corners)) -> Any:
                    return F.grid_sample(a, b, *how)

                yield Of(grid_sample), image, grid
                if mode != "bicubic":
                    yield Of(grid_sample), torch.randn(2, 3, 4, 4), torch.rand(2, 4, 2, 2) * 2 - 1
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        for corners in (False, True) if mode in ("bilinear", "bicubic") else (None,):
            sizes: tuple[dict[str, Any], ...] = ({"size": (12, 11)}, {"size": (5, 4)}, {"size": (16, 12)})
            for options in (*sizes, {"scale_factor": 2.0}, {"scale_factor": (1.5, 0.7)}):

                def interpolate(a: Any, mode: str = mode, corners: Any = corners, options: Any = options) -> Any:
                    return F.interpolate(a, mode=mode, align_corners=corners, **options)

                yield Of(interpolate), image
    for mode in ("nearest", "linear"):

        def interpolate1d(a: Any, mode: str = mode) -> Any:
            return F.interpolate(a, size=13, mode=mode)

        yield Of(interpolate1d), image[0]
    for corners in (False, True):

        def affine_grid(theta: Any, corners: bool = corners) -> Any:
            return F.affine_grid(theta, [2, 3, 4, 5], align_corners=corners)

        yield Of(affine_grid), torch.randn(2, 2, 3)

        def antialiased(a: Any, corners: bool = corners) -> Any:
            return F.interpolate(a, size=(5, 4), mode="bilinear", antialias=True, align_corners=corners)

        yield Of(antialiased), image
    for factor in (2, 3, 1):
        yield nn.PixelShuffle(factor), torch.randn(1, 2 * factor * factor, 3, 4)
        yield nn.PixelUnshuffle(factor), torch.randn(1, 2, 3 * factor, 2 * factor)
    for mode in ("constant", "reflect", "replicate", "circular"):
        for sizes in ((1, 2), (1, 0, 2, 1), (-1, 2) if mode == "constant" else (2, 2, 1, 1)):

            def pad(a: Any, mode: str = mode, sizes: Any = sizes) -> Any:
                return F.pad(a, sizes, mode=mode)

            yield Of(pad), torch.randn(2, 3, 5) if len(sizes) == 2 else image


def _recurrent() -> Iterator[tuple[Any, ...]]:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for options in (
            {}, {"batch_first": True}, {"bidirectional": True}, {"num_layers": 2}, {"bias": False},
            {"num_layers": 2, "bidirectional": True, "batch_first": True},
        ):  # fmt: skip
            yield kind(4, 5, **options), torch.randn(3, 2, 4)


def _norms() -> Iterator[tuple[Any, ...]]:
    image = torch.randn(2, 4, 6, 5)
    trained = nn.BatchNorm2d(4)
    trained(image)
    for options in ({}, {"eps": 0.1}, {"affine": False}, {"track_running_stats": False}):
        yield nn.BatchNorm2d(4, **options), image
        yield nn.BatchNorm1d(4, **options), image[0].permute(1, 0, 2).contiguous()
        yield nn.InstanceNorm2d(4, **{"affine": True, **options}), image
    yield trained, image
    for groups in (1, 2, 4):
        for affine in (True, False):
            norm = nn.GroupNorm(groups, 4, affine=affine)
            if affine:
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
            yield norm, image
            yield norm, image[:, :, 0]
    for shape in ((5,), (6, 5), (4, 6, 5)):
        for affine in (True, False):
            yield nn.LayerNorm(shape, elementwise_affine=affine), image
        yield nn.LayerNorm(shape, eps=0.1), image
        yield nn.RMSNorm(shape), image
    for module in (
        nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Softplus(2.0, 1.0), nn.Softplus(), nn.ELU(0.3),
        nn.CELU(0.3), nn.SELU(), nn.Hardtanh(-0.3, 0.7), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardshrink(0.3),
        nn.Softshrink(0.3), nn.Tanhshrink(), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(4), nn.Threshold(0.2, -0.5),
        nn.LogSigmoid(), nn.Softmin(1), nn.GLU(1), nn.Softmax(1), nn.LogSoftmax(-1), nn.Softsign(), nn.ReLU6(),
        nn.RReLU(), nn.LocalResponseNorm(3), nn.CosineSimilarity(),
    ):  # fmt: skip
        if isinstance(module, nn.CosineSimilarity):
            yield module, image, torch.randn_like(image)
        else:
            yield module, 2 * image
