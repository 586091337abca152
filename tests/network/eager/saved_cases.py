"""Small networks, one for each operator that is answered in training: what autograd keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

aten = torch.ops.aten
Case = Callable[[Any, torch.Tensor], torch.Tensor]
"""``(module, x)`` -> a tensor; x is [2, 4, 8, 8] and made by a layer that is trained."""


class Around(nn.Module):
    """Operators behind a layer that is trained, each of a tensor of its own, in a type; parameters are of float32."""

    def __init__(self, cases: Sequence[Case], dtype: torch.dtype) -> None:
        super().__init__()
        self.cases, self.dtype, self.first = cases, dtype, nn.Linear(8, 8)
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.rand(shape)) for name, shape in SHAPES.items()})
        self.register_buffer("seen", torch.rand(8, 8) > 0.5)
        self.register_buffer("table", torch.rand(4))
        self.register_buffer("index", torch.tensor([1, 0, 3]))

    def weight(self, name: str) -> torch.Tensor:
        """A parameter in the type of the case."""
        return self.weights[name].to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[number of cases]: the sums of what they make."""
        x = self.first(x)
        return torch.stack([case(self, (x * 2).to(self.dtype)).float().sum() for case in self.cases])


SHAPES = {
    "matrix": (6, 8), "row": (8,), "column": (4,), "one": (1,), "filter": (6, 4, 3, 3), "depthwise": (4, 1, 3, 3),
    "across": (4, 6, 3, 3), "line": (6, 4, 3), "line across": (4, 6, 3), "box": (6, 4, 2, 2, 2),
    "box across": (4, 6, 2, 2, 2), "wide": (8, 16), "bias": (6,), "words": (10, 8),
    **{f"gates{n} {name}": (8 * n, *more) for n in (1, 3) for name, more in
       {"of x": (32,), "of state": (8,), "bias": (), "bias of state": ()}.items()},
}  # fmt: skip


def flat(x: torch.Tensor) -> torch.Tensor:
    """[16, 32] of [2, 4, 8, 8]."""
    return x.reshape(16, 32)


def steps(x: torch.Tensor) -> torch.Tensor:
    """[16, 1, 32] of [2, 4, 8, 8]."""
    return flat(x).unsqueeze(1)


def state(x: torch.Tensor) -> torch.Tensor:
    """[1, 1, 8] of zeros."""
    return x.new_zeros(1, 1, 8)


def gates(m: Any, many: int) -> list[torch.Tensor]:
    """Weights of a recurrent layer of 8 units."""
    return [m.weight(f"gates{many} {name}") for name in ("of x", "of state", "bias", "bias of state")]


def index(x: torch.Tensor, *, most: int = 4) -> torch.Tensor:
    """[2, 4, 8, 8] of int64."""
    return torch.arange(x.numel()).reshape(x.shape) % most


def attention(m: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x * 2, x * 3, **options)


def fused(*others: Any, **options: Any) -> Case:
    return lambda m, x: attention(m, x, *others, **options)


CASES: dict[str, Case] = {
    # products
    "linear": lambda m, x: functional.linear(x, m.weight("matrix"), m.weight("bias")),
    "linear without bias": lambda m, x: functional.linear(x, m.weight("matrix")),
    "linear of a transpose": lambda m, x: functional.linear(x.transpose(1, 2), m.weight("matrix"), m.weight("bias")),
    "linear of a frozen matrix": lambda m, x: functional.linear(x, m.weight("matrix").detach()),
    "matmul": lambda m, x: x @ (x * 2),
    "matmul with itself": lambda m, x: x @ x,
    "matmul of a transpose": lambda m, x: x @ x.transpose(-1, -2),
    "matmul with a constant": lambda m, x: x @ torch.ones(8, 8, dtype=x.dtype),
    "matmul of a broadcast": lambda m, x: x @ (x[:1] * 2),
    "matmul by a vector": lambda m, x: x @ m.weight("row"),
    "mm": lambda m, x: torch.mm(flat(x), flat(x).t()),
    "bmm": lambda m, x: torch.bmm(x[0], x[1]),
    "addmm": lambda m, x: torch.addmm(flat(x), flat(x)[:, :16], flat(x)[:, :].contiguous()),
    "baddbmm": lambda m, x: torch.baddbmm(x[0], x[0], x[1]),
    "einsum of matrices": lambda m, x: torch.einsum("ab,bc->ac", flat(x), flat(x).t()),
    "einsum of heads": lambda m, x: torch.einsum("bhik,bhjk->bhij", x, x * 2),
    "conv1d": lambda m, x: functional.conv1d(x.flatten(2), m.weight("line"), m.weight("bias")),
    "conv2d": lambda m, x: functional.conv2d(x, m.weight("filter"), m.weight("bias"), padding=1),
    "conv2d, depthwise": lambda m, x: functional.conv2d(x, m.weight("depthwise"), groups=4),
    "conv2d of a frozen filter": lambda m, x: functional.conv2d(x, m.weight("filter").detach()),
    "conv3d": lambda m, x: functional.conv3d(x.unflatten(2, (2, 4)), m.weight("box")),
    "conv_transpose1d": lambda m, x: functional.conv_transpose1d(x.flatten(2), m.weight("line across"), stride=2),
    "conv_transpose2d": lambda m, x: functional.conv_transpose2d(x, m.weight("across"), m.weight("bias"), stride=2),
    "conv_transpose3d": lambda m, x: functional.conv_transpose3d(x.unflatten(2, (2, 4)), m.weight("box across")),
    # attention
    "attention": fused(),
    "attention, causal": fused(is_causal=True),
    "attention, scaled": fused(scale=0.1),
    "attention with dropout": fused(dropout_p=0.5),
    "attention, causal with dropout": fused(dropout_p=0.5, is_causal=True),
    "attention, bool mask": lambda m, x: attention(m, x, attn_mask=m.seen),
    "attention, float mask": lambda m, x: attention(m, x, attn_mask=m.seen.to(x.dtype)),
    "attention, bool mask with dropout": lambda m, x: attention(m, x, attn_mask=m.seen, dropout_p=0.5),
    "attention, trained mask": lambda m, x: attention(m, x, attn_mask=x[0, 0]),
    "attention, wider values": lambda m, x: functional.scaled_dot_product_attention(x, x * 2, x @ m.weight("wide")),
    "attention of three axes": lambda m, x: functional.scaled_dot_product_attention(x[0], x[0] * 2, x[0] * 3),
    "attention, fewer heads": lambda m, x: functional.scaled_dot_product_attention(
        x, x[:, :2] * 2, x[:, :2] * 3, enable_gqa=True
    ),
    "attention, plain, causal by where": lambda m, x: (
        torch.where(m.seen, x @ x.transpose(-1, -2) * 0.3, float("-inf")).softmax(-1) @ (x * 3)
    ),
    "attention, plain, causal by masked_fill": lambda m, x: (
        (x @ x.transpose(-1, -2)).masked_fill(m.seen, -9.0).softmax(-1) @ (x * 3)
    ),
    # recurrent layers
    "gru": lambda m, x: torch.gru(steps(x), state(x), gates(m, 3), True, 1, 0.0, True, False, False)[0],
    "rnn_tanh": lambda m, x: torch.rnn_tanh(steps(x), state(x), gates(m, 1), True, 1, 0.0, True, False, False)[0],
    # norms
    "layer_norm": lambda m, x: functional.layer_norm(x, (8,), m.weight("row"), m.weight("row")),
    "layer_norm without weights": lambda m, x: functional.layer_norm(x, (8, 8)),
    "rms_norm": lambda m, x: functional.rms_norm(x, (8,), m.weight("row")),
    "rms_norm without weights": lambda m, x: functional.rms_norm(x, (8,)),
    "group_norm": lambda m, x: functional.group_norm(x, 2, m.weight("column"), m.weight("column")),
    "instance_norm": lambda m, x: functional.instance_norm(x),
    "batch_norm": lambda m, x: functional.batch_norm(
        x, m.table.clone(), m.table.clone(), m.weights["column"], m.weights["column"], training=True
    ),
    "batch_norm, frozen": lambda m, x: functional.batch_norm(x, m.table, m.table, m.weights["column"]),
    "weight_norm": lambda m, x: functional.linear(x, m.weight("matrix") / m.weight("matrix").norm(dim=1, keepdim=True)),
    # poolings, reductions, interpolation
    "max_pool2d": lambda m, x: functional.max_pool2d(x, 2),
    "max_pool2d, overlapping": lambda m, x: functional.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda m, x: functional.avg_pool2d(x, 2),
    "max_pool1d": lambda m, x: functional.max_pool1d(x.flatten(0, 1), 2),
    "avg_pool1d": lambda m, x: functional.avg_pool1d(x.flatten(0, 1), 2),
    "max_pool3d": lambda m, x: functional.max_pool3d(x.unsqueeze(0), 2),
    "avg_pool3d": lambda m, x: functional.avg_pool3d(x.unsqueeze(0).float(), 2),  # torch 2.13 has none of bfloat16
    "adaptive_avg_pool2d(1)": lambda m, x: functional.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool2d(4)": lambda m, x: functional.adaptive_avg_pool2d(x, 4),
    "mean": lambda m, x: x.mean(),
    "mean of rows": lambda m, x: x.mean(-1),
    "mean of columns": lambda m, x: x.mean(1, keepdim=True),
    "sum": lambda m, x: x.sum((2, 3)),
    "prod": lambda m, x: x.prod(-1),
    "amax": lambda m, x: x.amax(-1),
    "amin": lambda m, x: x.amin((1, 2)),
    "max of all": lambda m, x: x.max(),
    "max of rows": lambda m, x: x.max(-1).values,
    "min of rows": lambda m, x: x.min(-1, keepdim=True).values,
    "argmax": lambda m, x: x + x.argmax(-1, keepdim=True),
    "var": lambda m, x: x.var(-1),
    "std": lambda m, x: x.std((1, 2)),
    "norm": lambda m, x: x.norm(dim=-1),
    "norm of all": lambda m, x: x.norm(),
    "linalg_vector_norm": lambda m, x: torch.linalg.vector_norm(x, 3, dim=1),
    "upsample nearest": lambda m, x: functional.interpolate(x, scale_factor=2),
    "upsample bilinear": lambda m, x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "upsample bicubic": lambda m, x: functional.interpolate(x, size=(12, 12), mode="bicubic"),
    # lookups and stores
    "embedding": lambda m, x: functional.embedding(index(x[0, 0]), m.weight("words")) + x[0, 0],
    "index": lambda m, x: x[:, m.index],
    "index of rows": lambda m, x: flat(x)[m.index],
    "index_select": lambda m, x: x.index_select(1, m.index),
    "gather": lambda m, x: x.gather(-1, index(x)[..., :2]),
    "take": lambda m, x: x.take(index(x)),
    "take_along_dim": lambda m, x: x.take_along_dim(index(x), -1),
    "index_put": lambda m, x: x.index_put((m.index[:2],), x[:2] * 2),
    "index_copy": lambda m, x: x.index_copy(1, m.index, x[:, :3] * 2),
    "index_add": lambda m, x: x.index_add(1, m.index, x[:, :3] * 2),
    "index_fill": lambda m, x: x.index_fill(1, m.index, 0.0),
    "scatter": lambda m, x: x.scatter(-1, index(x), x * 2),
    "scatter_add": lambda m, x: x.scatter_add(-1, index(x), x * 2),
    "topk": lambda m, x: x.topk(2).values,
    "sort": lambda m, x: x.sort(-1).values,
    "argsort": lambda m, x: x + x.argsort(-1),
    "cumsum": lambda m, x: x.cumsum(-1),
    "repeat_interleave": lambda m, x: x.repeat_interleave(2, 1),
    # masks and choices
    "where": lambda m, x: torch.where(x > 0, x, 0.0),
    "where of two": lambda m, x: torch.where(m.seen, x * 2, x * 3),
    "masked_fill": lambda m, x: x.masked_fill(m.seen, 0.0),
    "masked_fill of a comparison": lambda m, x: x.masked_fill(x < 0, 0.0),
    "tril": lambda m, x: x.tril(),
    "triu": lambda m, x: x.triu(1),
    "dropout": lambda m, x: functional.dropout(x, 0.5),
    "dropout of an activation": lambda m, x: functional.dropout(torch.relu(x), 0.5),
    "dropout of nothing": lambda m, x: functional.dropout(x, 0.0),
    "dropout in place": lambda m, x: functional.dropout(x * 2, 0.5, inplace=True),
    "dropout of maps": lambda m, x: functional.dropout2d(x, 0.5),
    # layouts and copies
    "cat": lambda m, x: torch.cat((x * 2, x.exp()), 1),
    "stack": lambda m, x: torch.stack((x, x * 2)),
    "repeat": lambda m, x: x.repeat(1, 2, 1, 1),
    "roll": lambda m, x: x.roll(1, -1),
    "pad": lambda m, x: functional.pad(x, (1, 1)),
    "clone": lambda m, x: x.clone().exp(),
    "contiguous": lambda m, x: x.transpose(1, 2).contiguous().sin(),
    "reshape that copies": lambda m, x: x.transpose(1, 2).reshape(2, -1).sin(),
    "chunk": lambda m, x: x.chunk(2, 1)[0].sin() * x.chunk(2, 1)[1].sigmoid(),
    "slice": lambda m, x: x[:, :1].exp() + x[:, 1:2].sin(),
    "expand": lambda m, x: x[:1].exp().expand(2, 4, 8, 8) * x,
    "cast": lambda m, x: x.to(torch.float64).sin(),
    "cast back": lambda m, x: x.to(torch.bfloat16).sin().to(torch.float32).exp(),
    "detach": lambda m, x: x * x.detach().exp(),
    "copy_": lambda m, x: torch.zeros_like(x).copy_(x).sin(),
    "in place": lambda m, x: (x * 2).add_(1).relu_().mul_(3),
    "more in place": lambda m, x: (x * 2).sub_(x).div_(x + 3),
    "masked_fill_": lambda m, x: (x * 2).masked_fill_(m.seen, 0.0),
    "scatter_reduce": lambda m, x: x.scatter_reduce(-1, index(x), x * 2, "amax"),
    "scatter_reduce_": lambda m, x: (x * 2).scatter_reduce_(-1, index(x), x.exp(), "sum"),
    "index_reduce": lambda m, x: x.index_reduce(1, m.index, x[:, :3] * 2, "amax"),
    "index_reduce_": lambda m, x: (x * 2).index_reduce_(1, m.index, x[:, :3].exp(), "mean"),
    "embedding_bag": lambda m, x: functional.embedding_bag(index(x[0, 0]), m.weight("words"), mode="sum") + x[0, 0],
    "scatter_": lambda m, x: (x * 2).scatter_(-1, index(x), x.exp()),
    "scatter_add_": lambda m, x: (x * 2).scatter_add_(-1, index(x), x.exp()),
    "index_add_": lambda m, x: (x * 2).index_add_(1, m.index, x[:, :3].exp()),
    "index_copy_": lambda m, x: (x * 2).index_copy_(1, m.index, x[:, :3].exp()),
    "index_put_": lambda m, x: (x * 2).index_put_((m.index[:2],), x[:2].exp()),
    "in place of a part": lambda m, x: (x * 2).index_fill_(1, m.index, 0.0).sin(),
    "new tensors": lambda m, x: x * torch.ones_like(x) + torch.zeros(8) + torch.rand_like(x) * torch.full((8,), 2.0),
    # arithmetic
    "add": lambda m, x: x + x * 2,
    "mul": lambda m, x: x * (x + 1),
    "mul by a row": lambda m, x: x * m.weight("row"),
    "mul by a scalar": lambda m, x: x * 2,
    "square by mul": lambda m, x: x * x,
    "sub": lambda m, x: x - x.exp(),
    "div": lambda m, x: x / (x + 1),
    "div by a column": lambda m, x: x / m.weight("column")[:, None, None],
    "pow": lambda m, x: x.abs() ** x,
    "pow of a number": lambda m, x: x**3,
    "number to the power": lambda m, x: 2**x,
    "lerp": lambda m, x: torch.lerp(x, x * 2, 0.3),
    "lerp by a tensor": lambda m, x: torch.lerp(x, x * 2, m.seen.to(x.dtype)),
    "addcmul": lambda m, x: torch.addcmul(x, x * 2, x * 3),
    "addcdiv": lambda m, x: torch.addcdiv(x, x * 2, x + 3),
    "clamp": lambda m, x: x.clamp(0, 1),
    "diff": lambda m, x: x.diff(dim=-1),
    "outer": lambda m, x: torch.outer(x.flatten()[:8], x.flatten()),
    "rotary": lambda m, x: x * m.seen.cos() + torch.cat((-x[..., 4:], x[..., :4]), -1) * m.seen.sin(),
    "gated": lambda m, x: functional.silu(x) * (x * 2),
    "glu": lambda m, x: x[..., :4] * torch.sigmoid(x[..., 4:]),
    "softmax": lambda m, x: x.softmax(-1),
    "softmax in float32": lambda m, x: x.softmax(-1, dtype=torch.float32).to(x.dtype) * 2,
    "logsumexp": lambda m, x: x.logsumexp(1),
    "log_softmax": lambda m, x: x.log_softmax(1),
    # losses
    "cross_entropy": lambda m, x: functional.cross_entropy(flat(x), torch.arange(16)),
    "cross_entropy of images": lambda m, x: functional.cross_entropy(x, index(x)[:, 0]),
    "cross_entropy, smoothed": lambda m, x: functional.cross_entropy(flat(x), torch.arange(16), label_smoothing=0.1),
    "nll_loss": lambda m, x: functional.nll_loss(flat(x).log_softmax(-1), torch.arange(16)),
    "mse_loss": lambda m, x: functional.mse_loss(x, x.detach() * 2),
    "softplus": lambda m, x: functional.softplus(x),
    "reflection pad": lambda m, x: functional.pad(x, (1, 1, 1, 1), "reflect"),
}


def pointwise() -> Iterator[tuple[str, Case]]:
    """Operators that torch marks as elementwise, of one tensor or two, that have a gradient."""
    for name in dir(aten):
        if name.endswith("_backward") or not hasattr(packet := getattr(aten, name), "overloads"):
            continue
        for overload in packet.overloads():
            one = getattr(packet, overload)
            needed = [argument for argument in one._schema.arguments if not argument.has_default_value()]
            plain = all(str(argument.type) == "Tensor" for argument in needed) and len(needed) in (1, 2)
            results = [str(value.type) for value in one._schema.returns]
            if torch.Tag.pointwise in one.tags and plain and results == ["Tensor"] and not one._schema.is_mutable:
                yield f"{name}.{overload}", _plain(one, len(needed))


def _plain(operator: Any, count: int) -> Case:
    return lambda m, x: operator(*(x.sigmoid(), x.sigmoid() + 1)[:count])
