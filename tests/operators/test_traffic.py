"""Every operator of the eager path that norms, pools, reduces, interpolates or indexes, next to its real call.

The call runs on tensors; what it is given and returns is counted from these, and compared with what its description
says that it reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cdmpp.operators.aten import calls_of
from cdmpp.operators.operator import EagerOperator

IMAGE, WIDE, TOKENS = (2, 32, 28, 28), (2, 8, 30, 44), (4, 16, 64)
NEAR = 0.05
"""Of all elements and bytes: indices count as an element of the type, a batch norm's four vectors as two."""


@dataclass(frozen=True)
class Case:
    """A call of torch, and where that is fixed, how many rows of how many elements it works on."""

    name: str
    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    rows: tuple[int, int] | None = None
    index: tuple[int, tuple[int, ...]] | None = None
    """Largest index and shape of the last tensor, which is one of whole numbers."""

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        made = [torch.rand(*shape).to(dtype) for shape in self.shapes]
        if self.index is not None:
            made.append(torch.randint(0, self.index[0], self.index[1]))
        return tuple(made)


def norms() -> Iterator[Case]:
    for groups, channels, image in ((8, 64, (32, 32)), (1, 32, (14, 14)), (32, 64, (17, 19)), (4, 64, (128,))):
        rows = 2 * groups, channels // groups * math.prod(image)
        shapes = ((2, channels, *image), (channels,), (channels,))
        yield Case(f"group_norm {groups} {image}", lambda x, *w, g=groups: F.group_norm(x, g, *w), shapes, rows)
    yield Case("group_norm plain", lambda x: F.group_norm(x, 8), (IMAGE,), (16, 3136))
    for axes in (1, 2, 3):
        shape = (4, 6, 16, 64)
        own = shape[4 - axes :]
        rows = math.prod(shape[: 4 - axes]), math.prod(own)
        yield Case(f"layer_norm {axes} axes", lambda x, *w, o=own: F.layer_norm(x, o, *w), (shape, own, own), rows)
    yield Case("layer_norm plain", lambda x: F.layer_norm(x, (64,)), (TOKENS,), (64, 64))
    yield Case("layer_norm few", lambda x: F.layer_norm(x, (1024,)), ((2, 1024),), (2, 1024))
    yield Case("layer_norm factor", lambda x, w: F.layer_norm(x, (64,), w), (TOKENS, (64,)), (64, 64))
    yield Case("rms_norm", lambda x, w: F.rms_norm(x, (64,), w), (TOKENS, (64,)), (64, 64))
    yield Case("rms_norm few", lambda x, w: F.rms_norm(x, (4096,), w), ((1, 4096), (4096,)), (1, 4096))
    yield Case("instance_norm", lambda x: F.instance_norm(x), (IMAGE,), (64, 784))
    for shape, rows in (
        (IMAGE, (64, 784)), ((32, 64, 4, 4), (64, 512)), ((256, 128), (128, 256)), ((2, 16, 100), (32, 100)),
        ((1, 64, 7, 7), (64, 49)), ((2, 4, 5, 6, 7), (8, 210)),
    ):  # fmt: skip
        shapes = (shape, *[shape[1:2]] * 4)
        yield Case(f"batch_norm {shape}", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), shapes, rows)
    for axis in (-1, 1, 0):
        rows = math.prod(TOKENS) // TOKENS[axis], TOKENS[axis]
        yield Case(f"softmax {axis}", lambda x, a=axis: F.softmax(x, a), (TOKENS,), rows)
        yield Case(f"log_softmax {axis}", lambda x, a=axis: F.log_softmax(x, a), (TOKENS,), rows)


def pools() -> Iterator[Case]:
    for shape in (IMAGE, WIDE, (3, 16, 20), (1, 4, 6, 200)):
        for options in (
            {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 1},
            {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        ):  # fmt: skip
            for name in ("max_pool2d", "avg_pool2d"):
                yield Case(f"{name} {shape} {options}", lambda x, n=name, o=options: getattr(F, n)(x, **o), (shape,))
        yield Case(f"max_pool2d dilated {shape}", lambda x: F.max_pool2d(x, 2, dilation=2), (shape,))
    for shape in (IMAGE, WIDE):
        for size in (1, 7, (5, 3), (None, 1)):
            yield Case(f"adaptive_avg_pool2d {shape} {size}", lambda x, s=size: F.adaptive_avg_pool2d(x, s), (shape,))


def reductions() -> Iterator[Case]:
    for name in ("mean", "sum", "amax", "amin", "argmax", "var", "std", "norm", "prod", "any", "all"):
        for axis in (-1, 0):
            yield Case(f"{name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(dim=a), (TOKENS,))
    yield Case("max pair", lambda x: x.max(-1), (TOKENS,))
    yield Case("mean of all", lambda x: x.mean(), (TOKENS,))
    yield Case("mean of pairs", lambda x: x.mean(-1), ((512, 2),))
    yield Case("argmax of pairs", lambda x: x.argmax(-1), ((512, 2),))
    yield Case("cumsum", lambda x: x.cumsum(-1), (TOKENS,))
    yield Case("cumsum of short rows", lambda x: x.cumsum(0), (TOKENS,))
    yield Case("topk", lambda x: x.topk(32), (TOKENS,))
    yield Case("sort", lambda x: x.sort(-1), (TOKENS,))


def interpolations() -> Iterator[Case]:
    for mode in ("nearest", "bilinear", "bicubic", "nearest-exact"):
        for scale in (2, 0.5, 3.5):
            yield Case(
                f"interpolate {mode} {scale}",
                lambda x, m=mode, s=scale: F.interpolate(x, scale_factor=s, mode=m),
                (WIDE,),
            )
    yield Case("interpolate linear", lambda x: F.interpolate(x, size=50, mode="linear"), ((2, 8, 20),))
    yield Case("interpolate area", lambda x: F.interpolate(x, size=(14, 14), mode="area"), (IMAGE,))


def lookups() -> Iterator[Case]:
    for width in (8, 64, 1000):
        yield Case(f"embedding {width}", lambda w, i: F.embedding(i, w), ((500, width),), None, (500, (4, 16)))
        yield Case(f"index {width}", lambda w, i: w[i], ((500, width),), None, (500, (4, 16)))
        yield Case(f"index_select {width}", lambda w, i: w.index_select(0, i), ((500, width),), None, (500, (64,)))
        yield Case(f"gather {width}", lambda w, i: w.gather(0, i), ((500, width),), None, (500, (64, width)))
    yield Case("index behind", lambda w, i: w[:, i], (TOKENS,), None, (16, (8,)))
    yield Case("index last", lambda w, i: w[..., i], (TOKENS,), None, (64, (48,)))
    yield Case("index of three axes", lambda w, i: w[i], (TOKENS,), None, (4, (9,)))
    yield Case("index by two", lambda w, i: w[i, i], ((50, 50, 32),), None, (50, (64,)))
    yield Case("index of numbers", lambda w, i: w[i], ((5000,),), None, (5000, (2, 300)))
    yield Case("index_select behind", lambda w, i: w.index_select(-1, i), (TOKENS,), None, (64, (48,)))
    yield Case("take_along_dim", lambda w, i: torch.take_along_dim(w, i, 1), ((64, 500),), None, (500, (64, 20)))


def stores() -> Iterator[Case]:
    for width in (8, 64):
        shapes, index = ((500, width), (32, width)), (500, (32,))
        yield Case(f"index_put {width}", lambda w, v, i: w.index_put((i,), v), shapes, None, index)
        yield Case(f"index_copy {width}", lambda w, v, i: w.index_copy(0, i, v), shapes, None, index)
        yield Case(f"index_add {width}", lambda w, v, i: w.index_add(0, i, v), shapes, None, index)
        yield Case(f"index_reduce {width}", lambda w, v, i: w.index_reduce(0, i, v, "amax"), shapes, None, index)
        index = 500, (32, width)
        yield Case(f"scatter {width}", lambda w, v, i: w.scatter(0, i, v), shapes, None, index)
        yield Case(f"scatter_add {width}", lambda w, v, i: w.scatter_add(0, i, v), shapes, None, index)
        reduce = lambda w, v, i: w.scatter_reduce(0, i, v, "amax")  # noqa: E731
        yield Case(f"scatter_reduce {width}", reduce, shapes, None, index)


def touched_again(case: Case) -> int:
    """Elements of a copy that a store then writes, or reads and writes."""
    if not case.name.startswith(("index_put", "index_copy", "index_add", "index_reduce", "scatter")):
        return 0
    return math.prod(case.shapes[1]) * (2 if "add" in case.name or "reduce" in case.name else 1)


CASES = {case.name: case for made in (norms, pools, reductions, interpolations, lookups, stores) for case in made()}


class Counted(TorchDispatchMode):
    """What a call is given from outside, and of a table the elements that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.own: set[int] = set()
        self.read: dict[int, tuple[int, int]] = {}
        self.kept: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors, results = ([v for v in tree_leaves(one) if isinstance(v, Tensor)] for one in ((args, kwargs), result))
        name = function._schema.name.split("::")[-1]
        shared = {storage(one) for one in tensors} & {storage(one) for one in results}
        for value in tensors:
            if storage(value) in self.own or storage(value) in shared:
                continue
            looked_up = name in ("embedding", "index", "index_select", "gather") and value.is_floating_point()
            elements = results[0].numel() if looked_up else value.numel()
            self.read[storage(value)] = elements, value.element_size()
        self.own |= {storage(one) for one in results} - {storage(one) for one in tensors}
        self.kept += results
        return result


def storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def described(case: Case, inputs: tuple[Tensor, ...]) -> list[EagerOperator]:
    class Call(nn.Module):
        def forward(self, *values: Tensor) -> Any:
            return case.run(*values)

    nodes = torch.export.export(Call(), inputs).graph.nodes
    return [one for node in nodes if node.op == "call_function" for one in calls_of(node).operators]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_described_is_what_a_call_reads_and_writes(case, dtype):
    inputs = case.inputs(getattr(torch, dtype))
    with Counted() as counted, torch.no_grad():
        result = case.run(*inputs)
    (operator,) = described(case, inputs)
    moved = [*counted.read.values(), *((one.numel(), one.element_size()) for one in tree_leaves(result))]
    moved.append((touched_again(case), inputs[0].element_size()))
    elements, size = sum(n for n, _ in moved), sum(n * own for n, own in moved)
    told = operator.read_elements + operator.written_elements
    indices = math.prod(case.index[1]) if case.index else 0
    assert told == pytest.approx(elements, rel=NEAR) or operator.name == "copy"
    assert operator.io_bytes == pytest.approx(size, rel=NEAR, abs=6 * indices * (operator.name == "embedding"))
    if case.rows:
        assert (operator["rows"], operator["cols"]) == case.rows
