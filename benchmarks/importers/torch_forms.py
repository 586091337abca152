"""Forms of torch operators that the samples of its operator tests lack, by the name in TVM's table of converters."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.importers.torch_layers import Of

aten = torch.ops.aten
_ONE_INPUT = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "ceil", "round", "erf"),
    *("isinf", "isnan", "log", "mean", "reciprocal", "squeeze"),
)


def forms() -> Iterator[list[tuple[str, nn.Module, tuple[Any, ...], str]]]:
    """Groups of ``(name, module in eval mode, inputs, operator)``; what may be refused is a group of its own."""
    torch.manual_seed(0)
    counts = Counter[str]()
    several = chain(_moved(), _reduced(), _elements(), _layers(), _made(), _in_place(), _bits(), _overloads())
    for size, source in ((1, chain(_random(), _sizes(), _sparse())), (12, several)):
        while batch := list(islice(source, size)):
            group = []
            for operator, function, *inputs in batch:
                counts[operator] += 1
                group.append((f"form_{operator}_{counts[operator]}", Of(function).eval(), tuple(inputs), operator))
            yield group


def _overloads() -> Iterator[tuple[Any, ...]]:
    """Under names that torch gives to few networks: another overload, or gone once they are decomposed."""
    for shape, value in (((4,), 2), ((2, 3), -1.5), ((2, 3, 4), 0.5)):
        x, other = torch.randn(shape), torch.rand(shape)
        for name in ("add", "sub", "div"):
            yield f"{name}.Scalar", lambda a, n=name, v=value: getattr(aten, n).Scalar(a, v), x
        yield "pow.Scalar", lambda a, v=value: torch.pow(abs(v), a), x
        for name in _ONE_INPUT:
            yield f"{name}.default", getattr(torch, name), other + (name == "acosh")
        yield "concat.default", lambda a, b: torch.concat([a, b, a], -1), x, other
        yield "contiguous.default", lambda a: a.transpose(0, -1).contiguous(), x
        yield "detach.default", lambda a: a.detach() * 2, x
        for kept in (False, True):
            yield "median.dim", lambda a, k=kept: torch.median(a, -1, k), x
        yield "to.dtype_layout", lambda a: aten.to.dtype_layout(a, dtype=torch.float64), x
        yield "type_as.default", lambda a, b: a.type_as(b), x, torch.ones(2, dtype=torch.int64)
        yield "meshgrid.default", lambda a, b: torch.meshgrid(a.flatten(), b.flatten()), x, other[:1]
    for shape in ((2, 3, 8), (1, 4, 5, 5), (2, 2, 3, 3, 3)):
        x = torch.randn(shape)
        yield "_native_batch_norm_legit.no_stats", F.instance_norm, x
        weight, bias = torch.rand(shape[1]), torch.randn(shape[1])
        yield "_native_batch_norm_legit.no_stats", lambda a, w, b: F.instance_norm(a, None, None, w, b), x, weight, bias


def _sparse() -> Iterator[tuple[Any, ...]]:
    for rows, inner, columns in ((4, 5, 3), (1, 8, 2), (6, 6, 6)):
        a, b, c = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
        yield "_sparse_mm.default", lambda a, b: torch.sparse.mm(a.to_sparse(), b), a, b
        yield "_sparse_addmm.default", lambda a, b, c: torch.sparse.addmm(c, a.to_sparse(), b), a, b, c
        yield "to_sparse.default", lambda a: a.to_sparse().to_dense(), a


def _in_place() -> Iterator[tuple[Any, ...]]:
    """On a value of the graph, read again afterwards."""
    for shape in ((4,), (2, 3), (2, 3, 4)):
        x, other, bits = torch.randn(shape), torch.randn(shape), torch.rand(shape) > 0.5
        yield "add_.Tensor", lambda a, b: (y := a * 2).add_(b) + y, x, other
        yield "mul_.Tensor", lambda a, b: (y := a + 2).mul_(b) + y, x, other
        yield "relu_.default", lambda a: (y := a + 0.5).relu_() + y, x
        yield "relu6_.default", lambda a: F.relu6(y := a * 8, inplace=True) + y, x
        yield "silu_.default", lambda a: F.silu(y := a * 2, inplace=True) + y, x
        yield "hardswish_.default", lambda a: F.hardswish(y := a * 4, inplace=True) + y, x
        for low, high in ((-1.0, 1.0), (0.0, 0.5)):
            yield "hardtanh_.default", lambda a, n=low, m=high: F.hardtanh(y := a * 2, n, m, inplace=True) + y, x
        yield "leaky_relu_.default", lambda a: F.leaky_relu(y := a * 2, 0.2, inplace=True) + y, x
        yield "dropout_.default", lambda a: F.dropout(y := a * 2, 0.3, training=False, inplace=True) + y, x
        yield "fill_.Scalar", lambda a: a + torch.empty_like(a).fill_(1.5), x
        yield "zero_.default", lambda a: (y := a * 2).zero_() + y + a, x
        yield "copy_.default", lambda a, b: (y := a * 2).copy_(b) + y, x, other
        yield "masked_fill_.Scalar", lambda a, m: (y := a * 2).masked_fill_(m, -1.0) + y, x, bits
        yield "detach_.default", lambda a: (a * 2).detach_() + a, x
        yield "bitwise_or_.Tensor", lambda a, b: (y := a.clone()).bitwise_or_(b) & y, bits, other > 0
        yield "bitwise_or_.Scalar", lambda a: (y := a + 1).bitwise_or_(2) + y, torch.randint(0, 9, shape)
        yield "index_put_.default", lambda a, i: (y := a * 2).index_put_((i,), a[:1]) + y, x, torch.tensor([1, 0])
    whole = torch.randn(4, 5, 3)
    for accumulate in (False, True):
        places = torch.tensor([2, 0]), torch.tensor([1, 4])

        def put(a: Any, i: Any, j: Any, v: Any, accumulate: bool = accumulate) -> Any:
            return a.index_put((i, j), v, accumulate)

        yield "index_put.default", put, whole, *places, torch.randn(2, 3)
        yield "index_put.default", put, whole, *places, torch.randn(3)

        def put_inside(a: Any, i: Any, v: Any, accumulate: bool = accumulate) -> Any:
            return aten.index_put(a, [None, i], v, accumulate)

        yield "index_put.default", put_inside, whole, places[0], torch.randn(4, 2, 3)
        yield "index_put.default", put_inside, whole, places[0], torch.randn(3)

        def put_apart(a: Any, i: Any, v: Any, accumulate: bool = accumulate) -> Any:
            return aten.index_put(a, [i, None, i], v, accumulate)

        yield "index_put.default", put_apart, whole, places[0], torch.randn(2, 5)


def _bits() -> Iterator[tuple[Any, ...]]:
    for kind in (torch.int64, torch.int32, torch.bool):
        a, b = (torch.randint(0, 2 if kind is torch.bool else 9, (3, 4)).to(kind) for _ in range(2))
        yield "__and__.Tensor", lambda a, b: a & b, a, b
        yield "__or__.Tensor", lambda a, b: a | b, a, b
        yield "__xor__.Tensor", lambda a, b: a ^ b, a, b
        one: Any = True if kind is torch.bool else 5
        yield "__and__.Scalar", lambda a, one=one: a & one, a
        yield "__or__.Scalar", lambda a, one=one: a | one, a
        yield "__xor__.Scalar", lambda a, one=one: a ^ one, a
        yield "bitwise_and.Scalar", lambda a, one=one: aten.bitwise_and(a, one), a
        yield "bitwise_or.Scalar", lambda a, one=one: aten.bitwise_or(a, one), a
        yield "bitwise_xor.Scalar", lambda a, one=one: aten.bitwise_xor(a, one), a


def _sizes() -> Iterator[tuple[Any, ...]]:
    """Sizes and branches that go by values."""
    mask, x = torch.tensor([[True, False], [True, True]]), torch.randn(2, 2)
    yield "masked_select.default", torch.masked_select, x, mask
    yield "masked_select.default", lambda a, m: torch.masked_select(a, m).sum(), x, mask
    yield "masked_select.default", lambda a: torch.masked_select(a, a > 0).relu(), x
    for kind in (torch.int64, torch.int32, torch.float32):
        yield "item.default", lambda a: a * a.sum().item(), torch.ones(2, 3).to(kind)
    yield "sym_size.int", lambda a: torch.nonzero(a).sum() * torch.nonzero(a).shape[0], x

    def cut(a: Any, compare: Any = None) -> Any:
        size = a.sum().item()
        torch._check(size >= 1)
        torch._check(size <= 4)
        return torch.zeros(size if compare is None else compare(size))

    count = torch.tensor([1, 1])
    yield "ge", cut, count
    for name, compare in (
        ("add", lambda n: n + 2), ("mul", lambda n: 3 * n), ("sub", lambda n: n - 1), ("floordiv", lambda n: n // 2),
        ("mod", lambda n: n % 3 + 1), ("neg", lambda n: 9 + -n),
    ):  # fmt: skip
        yield name, lambda a, compare=compare: cut(a, compare), count
    for name, compare in (
        ("eq", lambda n: n == 2), ("ne", lambda n: n != 7), ("lt", lambda n: n < 5), ("le", lambda n: n <= 5),
        ("gt", lambda n: n > 0),
    ):  # fmt: skip

        def checked(a: Any, compare: Any = compare) -> Any:
            size = a.sum().item()
            torch._check(compare(size))
            return a * size

        yield name, checked, count
    for flat in (False, True):

        def branch(a: Any, flat: bool = flat) -> Any:
            sign = a.sum() > 0 if flat else a.amax() > 0
            return torch.cond(sign, lambda b: b.sin(), lambda b: b.cos() * 2, (a,))

        yield "cond", branch, x
        yield "cond", branch, -x.abs()
    yield "_assert_async.msg", lambda a: (torch._assert_async(a.abs().sum() > 0, "all zero"), a * 2)[1], x
    yield "_assert_async.default", lambda a: (torch._assert_async(a.abs().sum() > 0), a * 2)[1], x
    yield "_assert_tensor_metadata.default", lambda a: a.to(torch.float64) * 2, x
    yield "to_sparse.default", lambda a: torch.sparse.mm(a.to_sparse(), a), x
    yield "to_sparse.default", lambda a: a.to_sparse().to_dense(), x
    yield "_sparse_addmm.default", lambda a: torch.sparse.addmm(a, a.to_sparse(), a), x


def _random() -> Iterator[tuple[Any, ...]]:
    """Results differ by design: what TVM makes instead is no work, or another."""
    for shape in ((8,), (4, 6), (2, 3, 4)):
        x = torch.randn(shape)
        yield "randn.default", lambda a: a + torch.randn(a.shape), x
        yield "randn_like.default", lambda a: a + torch.randn_like(a), x
        yield "native_dropout.default", lambda a: F.dropout(a, 0.4, training=True), x
        yield "bernoulli.p", lambda a: torch.bernoulli(a, 0.4), x
        yield "bernoulli.p", lambda a: a * aten.bernoulli.p(torch.zeros_like(a), 0.4), x
        yield "exponential.default", lambda a: a + torch.empty_like(a).exponential_(), x


def _made() -> Iterator[tuple[Any, ...]]:
    x = torch.randn(3, 4)
    kinds: tuple[dict[str, Any], ...] = ({}, {"dtype": torch.int64}, {"dtype": torch.float64})
    for shape, options in zip(((3, 4), (4,), (2, 3, 4)), kinds, strict=True):
        yield "empty.memory_format", lambda a, s=shape, o=options: a + torch.empty(s, **o).fill_(2), x
        yield (
            "empty_permuted.default",
            (lambda a, s=shape, o=options: a + torch.empty_permuted(s, [*range(len(s))], **o).fill_(2)),
            x,
        )
        yield "zeros.default", lambda a, s=shape, o=options: a + torch.zeros(s, **o), x
        yield "ones.default", lambda a, s=shape, o=options: a + torch.ones(s, **o), x
        yield "full.default", lambda a, s=shape, o=options: a + torch.full(s, 3, **o), x
        yield "empty_like.default", lambda a, o=options: a + torch.empty_like(a, **o).fill_(2), x
        yield "zeros_like.default", lambda a, o=options: a + torch.zeros_like(a, **o), x
        yield "ones_like.default", lambda a, o=options: a + torch.ones_like(a, **o), x
        yield "new_zeros.default", lambda a, s=shape, o=options: a + a.new_zeros(s, **o), x
        yield "new_ones.default", lambda a, s=shape, o=options: a + a.new_ones(s, **o), x
    for size in (3, 4, 7):
        yield "eye.default", lambda a, n=size: a[:1, :1] + torch.eye(n), x
        yield "eye.m", lambda a, n=size: a[:1, :1] + torch.eye(n, 5), x
        yield "arange.default", lambda a, n=size: a[:1, :1] + torch.arange(n), x
        yield "arange.start", lambda a, n=size: a[:1, :1] + torch.arange(2, n + 2), x
        yield "linspace.default", lambda a, n=size: a[:1, :1] + torch.linspace(-1, 2, n), x
        yield "hamming_window.default", lambda a, n=size: a[:1, :1] + torch.hamming_window(n), x
        yield "hamming_window.periodic", lambda a, n=size: a[:1, :1] + torch.hamming_window(n, False), x
        yield "hamming_window.periodic_alpha", lambda a, n=size: a[:1, :1] + torch.hamming_window(n, True, 0.6), x
        yield (
            "hamming_window.periodic_alpha_beta",
            (lambda a, n=size: a[:1, :1] + torch.hamming_window(n, True, 0.6, 0.3)),
            x,
        )
        yield "one_hot.default", lambda a, n=size: F.one_hot(a, n + 2), torch.tensor([[0, 2], [1, 0]])
        yield "scalar_tensor.default", lambda a, n=size: torch.where(a > 0, a, torch.scalar_tensor(n)), x
        yield "lift_fresh_copy.default", lambda a, n=size: a + torch.tensor([1.0, n, 2.0, 3.0]), x
        yield "fill.Scalar", lambda a, n=size: a + torch.fill(a, n), x


def _moved() -> Iterator[tuple[Any, ...]]:
    x = torch.randn(2, 3, 4)
    for start, length in ((0, 2), (1, 2), (2, 1)):
        yield "narrow.default", lambda a, s=start, n=length: a.narrow(1, s, n), x
    for i, j in (([1, 0, 2], [3, 0, 1]), ([2], [1, 2])):
        rows, columns = torch.tensor(i), torch.tensor(j)
        yield "index.Tensor", lambda a, r, c: a[:, r, c], x, rows, columns
        yield "index.Tensor", lambda a, r, c: a[0, r][:, c], x, rows, columns
        yield "index.Tensor", lambda a, r, c: a[:, r[:, None], c], x, rows, columns
        yield "index.Tensor", lambda a, r: a[r % 2, :, r], x, rows
        yield "index.Tensor", lambda a, r: aten.index(a, [r[:, None] % 2, None, r]), x, rows
        yield "index.Tensor", lambda a, r: aten.index(a, [None, r[None], r[:, None]]), x, rows
    yield "index.Tensor", lambda a, r: a[r], x, torch.tensor([-1, 0])
    yield "index.Tensor", lambda a: a[a > 0].sum(), x
    index = torch.randint(0, 2, (1, 2, 3))
    for dim in (0, 1, 2, -1):
        yield "gather.default", lambda a, i, d=dim: a.gather(d, i), x, index
        yield "scatter.src", lambda a, i, d=dim: a.scatter(d, i, a * 2), x, torch.arange(2).reshape(1, 1, 2)
        yield "scatter.value", lambda a, i, d=dim: a.scatter(d, i, 5.0), x, index
        yield "squeeze.dim", lambda a, d=dim: a[:1].squeeze(d), x
        yield "unbind.int", lambda a, d=dim: a.unbind(d), x
        yield "select.int", lambda a, d=dim: a.select(d, -1), x
        yield "chunk.default", lambda a, d=dim: a.chunk(2, d), torch.randn(4, 5, 7)
        yield "split.Tensor", lambda a, d=dim: a.split(2, d), torch.randn(4, 5, 7)
        yield "split_with_sizes.default", lambda a, d=dim: a.split([1, 2], d), torch.randn(3, 3, 3)
        yield "index_select.default", lambda a, i, d=dim: a.index_select(d, i), x, torch.tensor([1, 0, 1])
        yield "flip.default", lambda a, d=dim: a.flip([d]), x
        yield "roll.default", lambda a, d=dim: a.roll(1, d), x
        yield "transpose.int", lambda a, d=dim: a.transpose(d, 1), x
    for places in ([-1], [0, -2], [5]):
        yield "take.default", lambda a, i: a.take(i), x, torch.tensor(places)
        yield "embedding.default", lambda a, i: F.embedding(i, a), torch.randn(8, 3), torch.tensor([places]) % 8
    for size, stride, offset in (([2, 12], [12, 1], 0), ([3, 4], [4, 1], 2), ([2, 2], [1, 2], 0), ([3, 3], [2, 1], 0)):
        yield (
            "as_strided.default",
            (lambda a, n=size, s=stride, o=offset: torch.as_strided(a.contiguous(), n, s, o) + 0),
            x,
        )
    for start, end, step in ((1, 3, 1), (-2, 9, 1), (0, 4, 2), (3, 1, 1)):
        yield "slice.Tensor", lambda a, s=start, e=end, n=step: a[..., s:e:n], x
        if start < end:
            yield (
                "slice_scatter.default",
                (lambda a, s=start, e=end, n=step: aten.slice_scatter(a, a[..., s:e:n] * 2, 2, s, e, n)),
                x,
            )
    yield "meshgrid.default", lambda a, b: torch.meshgrid(a, b, indexing="ij"), torch.randn(3), torch.randn(4)
    yield "meshgrid.indexing", lambda a, b: torch.meshgrid(a, b, indexing="xy"), torch.randn(3), torch.randn(4)
    for offset, first, second in ((0, 0, 1), (1, 1, 2), (-1, 0, 2), (2, -1, 0)):
        yield "diagonal.default", lambda a, o=offset, f=first, s=second: a.diagonal(o, f, s), x
    for shape in ((2, 3, 1), (1, 3, 4), (5, 2, 3, 4)):
        yield "expand.default", lambda a, s=shape: a[:1, :1, :1].expand(s), x
        yield "repeat.default", lambda a, s=shape: a.repeat(s), x
        yield "tile.default", lambda a, s=shape: a.tile(s), x


def _reduced() -> Iterator[tuple[Any, ...]]:
    x = torch.randn(2, 3, 4)
    for alpha in (2, -1, 0.5):
        yield "add.Tensor", lambda a, b, n=alpha: torch.add(a, b, alpha=n), x, x.flip(0)
        yield "sub.Tensor", lambda a, b, n=alpha: torch.sub(a, b, alpha=n), x, x[0]
        yield "rsub.Tensor", lambda a, b, n=alpha: torch.rsub(a, b, alpha=n), x, x[0]
        yield "rsub.Scalar", lambda a, n=alpha: torch.rsub(a, 3, alpha=n), x
    yield "add.Tensor", lambda a, b: torch.add(a, b, alpha=3), torch.arange(4), torch.arange(4)
    yield "add.Tensor", lambda a, b: torch.add(a, b, alpha=0.5), x, torch.arange(4)
    high = float("inf")
    orders = ((0, [1]), (1, None), (2, [0, 2]), (3, [1]), (0.5, [1]), (-1, [1]), (high, None), (-high, [1]))
    for order, dims in orders:
        yield "linalg_vector_norm.default", lambda a, o=order, d=dims: torch.linalg.vector_norm(a, o, d), x
    for correction, dims in ((0, None), (1, [1]), (2, [0, -1])):
        options: dict[str, Any] = {"correction": correction, "keepdim": dims == [1]}
        yield "var.correction", lambda a, d=dims, o=options: a.var(d, **o), x
        yield "std.correction", lambda a, d=dims, o=options: a.std(d, **o), x


def _elements() -> Iterator[tuple[Any, ...]]:
    x = torch.randn(2, 3, 4)
    for low, high in ((-0.5, 0.5), (None, 0.2), (0.1, None)):
        yield "clamp.default", lambda a, n=low, m=high: a.clamp(n, m), x
    yield "clamp_max.default", lambda a: a.clamp_max(0.3), x
    yield "clamp_min.default", lambda a: a.clamp_min(0.3), x
    yield "clamp.Tensor", lambda a, b: a.clamp(b, b + 1), x, torch.randn(3, 1)
    for alpha in (0.5, 1.0, 2.0):
        yield "celu.default", lambda a, n=alpha: F.celu(a, n), x
        yield "elu.default", lambda a, n=alpha: F.elu(a, n), x
        yield "elu.default", lambda a, n=alpha: aten.elu(a, n, 1.5, 0.7), x
        yield "softplus.default", lambda a, n=alpha: F.softplus(a, n, 1.0), x
        yield "softshrink.default", lambda a, n=alpha: F.softshrink(a, n), 2 * x
        yield "hardtanh.default", lambda a, n=alpha: F.hardtanh(a, -n, 2 * n), 2 * x
    for decimals in (0, 1, -1):
        yield "round.decimals", lambda a, n=decimals: torch.round(a, decimals=n), 30 * x
    for approximate in ("none", "tanh"):
        yield "gelu.default", lambda a, how=approximate: F.gelu(a, approximate=how), x


def _layers() -> Iterator[tuple[Any, ...]]:
    x = torch.randn(2, 3, 4)
    yield "any.dims", lambda a: (a > 2).any((0, 2)), x
    for right in (False, True):
        yield "bucketize.Tensor", lambda a, b, r=right: torch.bucketize(a, b, right=r), x, torch.tensor([-1.0, 0, 1])
    yield "isin.Tensor_Tensor", lambda a, b: torch.isin(a, b), torch.arange(6), torch.tensor([2, 4])
    yield "isin.Tensor_Tensor", lambda a, b: torch.isin(a, b, invert=True), torch.arange(6), torch.tensor([2, 4])
    for options in ({}, {"reduction": "sum"}, {"label_smoothing": 0.1}, {"ignore_index": 2}, {"reduction": "none"}):
        labels = torch.tensor([1, 2])
        yield "cross_entropy_loss.default", lambda a, t, o=options: F.cross_entropy(a, t, **o), x[:, :, 0], labels
    for training in (False, True):
        for momentum in (0.1, 0.5):

            def batch_norm(
                a: Any, m: Any, v: Any, w: Any, training: bool = training, momentum: float = momentum
            ) -> Any:
                return F.batch_norm(a, m.clone(), v.clone(), w, None, training, momentum)

            yield "batch_norm.default", batch_norm, torch.randn(4, 3, 5), *torch.rand(3, 3)
    yield from _boxes()


def _boxes() -> Iterator[tuple[Any, ...]]:
    """By torchvision's operator; where its compiled one is missing, it computes what torchvision's own Python does."""
    try:
        from torchvision.ops.roi_align import _roi_align
    except ImportError:
        return
    taken = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
    with contextlib.suppress(RuntimeError):  # it is there
        torch.library.define("torchvision::roi_align", f"({taken}, int sampling_ratio, bool aligned) -> Tensor")
        torch.library.impl("torchvision::roi_align", "CPU", _roi_align)

        @torch.library.register_fake("torchvision::roi_align")
        def _(a: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Any:
            return a.new_empty(rois.shape[0], a.shape[1], height, width)

    boxes = torch.tensor([[0, 1.0, 1, 6, 5], [0, 0, 2, 3, 7]])
    for size, scale, ratio, aligned in (((3, 3), 1.0, 2, False), ((2, 4), 0.5, 1, True), ((2, 2), 1.0, -1, False)):

        def roi_align(a: Any, b: Any, n: Any = size, s: Any = scale, r: Any = ratio, how: Any = aligned) -> Any:
            return torch.ops.torchvision.roi_align(a, b, s, *n, r, how)

        yield "roi_align.default", roi_align, torch.randn(1, 2, 8, 8), boxes
