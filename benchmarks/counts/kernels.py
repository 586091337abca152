"""Small operators of odd sizes, written in TE, that are compiled for their counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdmpp.programs.task import Task


def _tensor(*shape: int, dtype: str = "float32", name: str = "x") -> Any:
    from tvm import te

    return te.placeholder(shape, dtype, name=name)


def _matmul(n: int, k: int, m: int, batch: int = 0) -> list[Any]:
    from tvm import te

    lead = (batch,) if batch else ()
    a, b = _tensor(*lead, n, k, name="a"), _tensor(*lead, k, m, name="b")
    r = te.reduce_axis((0, k), name="r")
    out = te.compute(
        (*lead, n, m), lambda *i: te.sum(a[(*i[:-2], i[-2], r)] * b[(*i[:-2], r, i[-1])], axis=r), name="out"
    )
    return [a, b, out]


def _attention(n: int, d: int) -> list[Any]:
    from tvm import topi

    q, k = _tensor(3, n, d, name="q"), _tensor(3, n, d, name="k")
    return [q, k, topi.nn.softmax(topi.nn.batch_matmul(q, k), axis=-1)]


def _conv2d(channels: int, size: int, filters: int, kernel: int, stride: int, padding: int, dilation: int) -> list[Any]:
    from tvm import topi

    x, w = _tensor(1, channels, size, size), _tensor(filters, channels, kernel, kernel, name="w")
    return [x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, stride, padding, dilation))]


def _depthwise(channels: int, size: int, kernel: int, stride: int) -> list[Any]:
    from tvm import topi

    x, w = _tensor(1, channels, size, size), _tensor(channels, 1, kernel, kernel, name="w")
    return [x, w, topi.nn.depthwise_conv2d_nchw(x, w, stride, kernel // 2, 1)]


def _transposed(channels: int, size: int, filters: int, kernel: int, stride: int) -> list[Any]:
    from tvm import topi

    x, w = _tensor(1, channels, size, size), _tensor(channels, filters, kernel, kernel, name="w")
    return [x, w, topi.nn.conv2d_transpose_nchw(x, w, (stride, stride), (1, 1), "float32", (0, 0))]


def _conv1d(channels: int, length: int, filters: int, kernel: int, dilation: int) -> list[Any]:
    from tvm import topi

    x, w = _tensor(1, channels, length), _tensor(filters, channels, kernel, name="w")
    return [x, w, topi.nn.conv1d_ncw(x, w, 1, dilation, dilation)]


def _adaptive(kind: str, channels: int, size: int, out: int) -> list[Any]:
    from tvm import topi

    x = _tensor(1, channels, size, size)
    return [x, topi.nn.adaptive_pool(x, (out, out), kind)]


def _pool(kind: str, channels: int, size: int, kernel: int, stride: int) -> list[Any]:
    from tvm import topi

    x, padding = _tensor(1, channels, size, size), (kernel // 2,) * 4
    return [x, topi.nn.pool2d(x, (kernel, kernel), (stride, stride), (1, 1), padding, kind)]


def _softmax(rows: int, columns: int) -> list[Any]:
    from tvm import topi

    x = _tensor(rows, columns)
    return [x, topi.nn.softmax(x)]


def _layer_norm(rows: int, columns: int) -> list[Any]:
    from tvm import topi

    x, scale, shift = _tensor(rows, columns), _tensor(columns, name="scale"), _tensor(columns, name="shift")
    return [x, scale, shift, topi.nn.layer_norm(x, scale, shift, [1])]


def _reduce(how: str, rows: int, columns: int, axis: int) -> list[Any]:
    from tvm import topi

    x = _tensor(rows, columns)
    return [x, getattr(topi, how)(x, axis=axis)]


def _elementwise(*shape: int) -> list[Any]:
    from tvm import topi

    x, y = _tensor(*shape), _tensor(*shape, name="y")
    return [x, y, topi.nn.relu(topi.add(topi.multiply(x, y), topi.sigmoid(x)))]


def _moves(rows: int, columns: int) -> list[Any]:
    from tvm import topi

    x, y = _tensor(rows, columns), _tensor(rows, columns + 3, name="y")
    return [x, y, topi.concatenate([topi.transpose(topi.transpose(x)), y], axis=1)]


def _gathered(rows: int, columns: int, picked: int) -> list[Any]:
    from tvm import topi

    x, places = _tensor(rows, columns), _tensor(picked, dtype="int64", name="places")
    return [x, places, topi.take(x, places, axis=0)]


def _resized(channels: int, size: int, out: int) -> list[Any]:
    from tvm import topi

    x = _tensor(1, channels, size, size)
    return [x, topi.image.resize2d(x, [0.0] * 4, (out, out), method="linear")]


KERNELS: dict[str, tuple[str, Callable[..., list[Any]], tuple[Any, ...]]] = {
    "matmul 17x23x19": ("matmul", _matmul, (17, 23, 19)),
    "matmul 65x127x33": ("matmul", _matmul, (65, 127, 33)),
    "batched matmul 3x17x23x19": ("matmul", _matmul, (17, 23, 19, 3)),
    "attention scores 29x13": ("softmax", _attention, (29, 13)),
    "conv2d 5x13x13, 7 filters 3x3": ("conv2d", _conv2d, (5, 13, 7, 3, 1, 1, 1)),
    "conv2d 3x19x19, 9 filters 5x5, stride 2": ("conv2d", _conv2d, (3, 19, 9, 5, 2, 2, 1)),
    "conv2d 6x15x15, 5 filters 3x3, dilation 2": ("conv2d", _conv2d, (6, 15, 5, 3, 1, 2, 2)),
    "depthwise conv2d 11x17x17": ("depthwise", _depthwise, (11, 17, 3, 1)),
    "depthwise conv2d 24x14x14, stride 2": ("depthwise", _depthwise, (24, 14, 3, 2)),
    "transposed conv2d 6x9x9, 5 filters 4x4": ("transposed conv", _transposed, (6, 9, 5, 4, 2)),
    "transposed conv2d 8x7x7, 4 filters 3x3": ("transposed conv", _transposed, (8, 7, 4, 3, 2)),
    "conv1d 7x101, 9 filters, dilation 3": ("conv1d", _conv1d, (7, 101, 9, 3, 3)),
    "conv1d 16x64, 16 filters": ("conv1d", _conv1d, (16, 64, 16, 5, 1)),
    "adaptive average pool 23 to 5": ("pool", _adaptive, ("avg", 6, 23, 5)),
    "adaptive max pool 17 to 3": ("pool", _adaptive, ("max", 9, 17, 3)),
    "average pool 7x19x19": ("pool", _pool, ("avg", 7, 19, 3, 2)),
    "max pool 5x21x21": ("pool", _pool, ("max", 5, 21, 3, 1)),
    "softmax 13x101": ("softmax", _softmax, (13, 101)),
    "layer norm 11x77": ("norm", _layer_norm, (11, 77)),
    "sum of 37x53 rows": ("reduce", _reduce, ("sum", 37, 53, 1)),
    "largest of 41x67 columns": ("reduce", _reduce, ("max", 41, 67, 0)),
    "place of the largest of 29x61 rows": ("reduce", _reduce, ("argmax", 29, 61, 1)),
    "elementwise 7x11x13": ("elementwise", _elementwise, (7, 11, 13)),
    "elementwise 10007": ("elementwise", _elementwise, (10007,)),
    "concatenation 19x21": ("elementwise", _moves, (19, 21)),
    "gather 31 of 50x17": ("elementwise", _gathered, (50, 17, 31)),
    "bilinear resize 13 to 29": ("elementwise", _resized, (3, 13, 29)),
}
"""Name -> class of operators, what builds it, its sizes."""


TILED = "50x70 in tiles of 16 rows, with a tail"
_TILED_ROWS = """
# from tvm.script import ir as I
# from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer((50, 70), "float32"), y: T.Buffer((70,), "float32"), out: T.Buffer((50, 70), "float32")):
        T.func_attr({"tirx.noalias": True})
        for tile in range(4):
            for row in range(T.min(16, 50 - tile * 16)):
                for column in range(70):
                    out[tile * 16 + row, column] = x[tile * 16 + row, column] * T.float32(2) + y[column]
"""


def kernel_task(name: str) -> Task:
    """The task of an entry of ``KERNELS``, or of ``TILED``, which has one schedule."""
    import tvm
    from tvm import te

    if name == TILED:
        return Task(name, name, "elementwise", _TILED_ROWS, 0.0, 0.0)
    op_class, build, sizes = KERNELS[name]
    module = tvm.IRModule({"main": te.create_prim_func(build(*sizes)).with_attr("tirx.noalias", True)})
    return Task(name, name, op_class, module.script(show_meta=True), 0.0, 0.0)


def arguments_of(module: Any) -> tuple[str, ...]:
    """What the driver is told of the arguments of ``main``, such as ``float32:1x8x14x14``."""
    return tuple(f"{_kind(p.dtype)}:{_sizes(p.shape)}" for p in module["main"].params)


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else dtype


def _sizes(shape: Sequence[Any]) -> str:
    return "x".join(str(int(extent)) for extent in shape) or "1"
