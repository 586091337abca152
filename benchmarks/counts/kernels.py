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


def _matmul_gradient(n: int, k: int, m: int) -> list[Any]:
    from tvm import te

    a, d = _tensor(n, k, name="a"), _tensor(n, m, name="d")
    r = te.reduce_axis((0, n), name="r")
    return [a, d, te.compute((k, m), lambda i, j: te.sum(a[r, i] * d[r, j], axis=r), name="out")]


def _conv_weight_gradient(channels: int, size: int, filters: int, kernel: int) -> list[Any]:
    from tvm import te

    out = size - kernel + 1
    x, d = _tensor(2, channels, size, size), _tensor(2, filters, out, out, name="d")
    n, y, z = (te.reduce_axis((0, extent), name=name) for extent, name in ((2, "n"), (out, "y"), (out, "z")))
    shape = (filters, channels, kernel, kernel)
    weight = te.compute(
        shape, lambda f, c, i, j: te.sum(x[n, c, y + i, z + j] * d[n, f, y, z], axis=[n, y, z]), name="out"
    )
    return [x, d, weight]


def _softmax_gradient(rows: int, columns: int) -> list[Any]:
    from tvm import topi

    y, d = _tensor(rows, columns, name="y"), _tensor(rows, columns, name="d")
    dot = topi.sum(topi.multiply(y, d), axis=1, keepdims=True)
    return [y, d, topi.multiply(y, topi.subtract(d, dot))]


def _activation_gradient(*shape: int) -> list[Any]:
    from tvm import topi

    x, d = _tensor(*shape), _tensor(*shape, name="d")
    s = topi.sigmoid(x)
    slope = topi.add(s, topi.multiply(topi.multiply(x, s), topi.subtract(topi.full_like(s, 1.0), s)))
    return [x, d, topi.multiply(d, slope)]


def _adam(n: int) -> list[Any]:
    from tvm import te, topi

    w, g, m, v = (_tensor(n, name=name) for name in "wgmv")
    mean = te.compute((n,), lambda i: m[i] * 0.9 + g[i] * 0.1, name="mean")
    square = te.compute((n,), lambda i: v[i] * 0.999 + g[i] * g[i] * 0.001, name="square")
    root = topi.add(topi.sqrt(square), topi.full_like(square, 1e-8))
    return [w, g, m, v, topi.subtract(w, topi.divide(mean, root))]


def _group_norm(groups: int, channels: int, size: int) -> list[Any]:
    from tvm import topi

    x = _tensor(1, channels, size, size)
    scale, shift = _tensor(channels, name="scale"), _tensor(channels, name="shift")
    return [x, scale, shift, topi.nn.group_norm(x, scale, shift, groups, 1, [2, 3])]


def _function(name: str, *shape: int) -> list[Any]:
    from tvm import topi

    x = _tensor(*shape)
    return [x, getattr(topi, name)(x)]


def _padded(*shape: int) -> list[Any]:
    from tvm import topi

    x = _tensor(*shape)
    return [x, topi.nn.pad(x, [0, 0, 1, 2], [0, 0, 3, 1])]


def _cumulated(rows: int, columns: int) -> list[Any]:
    from tvm import topi

    x = _tensor(rows, columns)
    return [x, topi.cumsum(x, axis=1)]


def _clipped(*shape: int) -> list[Any]:
    from tvm import topi

    x = _tensor(*shape)
    return [x, topi.clip(x, -0.3, 0.4)]


def _doubles(n: int) -> list[Any]:
    from tvm import topi

    x, y = _tensor(n, dtype="float64"), _tensor(n, dtype="float64", name="y")
    return [x, y, topi.add(topi.multiply(x, y), y)]


def _quantised(n: int, k: int, m: int) -> list[Any]:
    from tvm import te

    a, b = _tensor(n, k, dtype="int8", name="a"), _tensor(k, m, dtype="int8", name="b")
    r = te.reduce_axis((0, k), name="r")
    out = te.compute((n, m), lambda i, j: te.sum(a[i, r].astype("int32") * b[r, j].astype("int32"), axis=r), name="out")
    return [a, b, out]


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
    "matmul 1x255x7": ("matmul", _matmul, (1, 255, 7)),
    "matmul 128x64x96": ("matmul", _matmul, (128, 64, 96)),
    "matmul 33x1x65": ("matmul", _matmul, (33, 1, 65)),
    "matmul of int8 19x37x21": ("matmul", _quantised, (19, 37, 21)),
    "conv2d 16x14x14, 32 filters 1x1": ("conv2d", _conv2d, (16, 14, 32, 1, 1, 0, 1)),
    "conv2d 8x9x9, 16 filters 3x3, stride 2": ("conv2d", _conv2d, (8, 9, 16, 3, 2, 1, 1)),
    "softmax 7x1": ("softmax", _softmax, (7, 1)),
    "softmax 64x128": ("softmax", _softmax, (64, 128)),
    "group norm 12x9x9": ("norm", _group_norm, (3, 12, 9)),
    "cumulative sum 7x53": ("reduce", _cumulated, (7, 53)),
    "product of 13x31 rows": ("reduce", _reduce, ("prod", 13, 31, 1)),
    "tanh of 31x33": ("elementwise", _function, ("tanh", 31, 33)),
    "erf of 1021": ("elementwise", _function, ("erf", 1021)),
    "logarithm of 511": ("elementwise", _function, ("log", 511)),
    "reciprocal root of 17x65": ("elementwise", _function, ("rsqrt", 17, 65)),
    "padding of 3x5x11x13": ("elementwise", _padded, (3, 5, 11, 13)),
    "clipping of 4099": ("elementwise", _clipped, (4099,)),
    "doubles 2053": ("elementwise", _doubles, (2053,)),
    "gradient of matmul weights 37x29x23": ("matmul", _matmul_gradient, (37, 29, 23)),
    "gradient of matmul weights 64x48x80": ("matmul", _matmul_gradient, (64, 48, 80)),
    "gradient of conv2d weights 3x11x11, 5 filters": ("conv2d", _conv_weight_gradient, (3, 11, 5, 3)),
    "gradient of softmax 19x45": ("softmax", _softmax_gradient, (19, 45)),
    "gradient of silu 23x47": ("elementwise", _activation_gradient, (23, 47)),
    "Adam's step of 3001": ("elementwise", _adam, (3001,)),
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
