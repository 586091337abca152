"""Unscheduled tensor programs of many kinds, small enough to sample schedules for in a test."""

from __future__ import annotations

import tvm
from tvm import te, tirx

from cdmpp.programs.task import Task


def _module(*tensors):
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def matmul(dtype="float32"):
    a, b = te.placeholder((64, 96), dtype, name="A"), te.placeholder((96, 128), dtype, name="B")
    k = te.reduce_axis((0, 96), name="k")
    c = te.compute((64, 128), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    out = te.compute((64, 128), lambda i, j: tirx.max(c[i, j], tirx.const(0, dtype)), name="relu")
    return _module(a, b, out)


def half_matmul():
    return matmul("float16")


def conv2d():
    x, w = te.placeholder((1, 8, 14, 14), name="x"), te.placeholder((16, 8, 3, 3), name="w")
    bias = te.placeholder((1, 16, 1, 1), name="bias")
    zero = tirx.const(0.0, "float32")
    inside = lambda h, v: tirx.all(h >= 1, h < 15, v >= 1, v < 15)  # noqa: E731
    pad = te.compute(
        (1, 8, 16, 16),
        lambda n, c, h, v: tirx.if_then_else(inside(h, v), x[n, c, h - 1, v - 1], zero),
        name="pad",
    )
    c, y, z = (te.reduce_axis((0, e), name=n) for e, n in ((8, "c"), (3, "y"), (3, "z")))
    conv = te.compute(
        (1, 16, 14, 14), lambda n, f, h, v: te.sum(pad[n, c, h + y, v + z] * w[f, c, y, z], axis=[c, y, z]), name="conv"
    )
    out = te.compute((1, 16, 14, 14), lambda n, f, h, v: tirx.max(conv[n, f, h, v] + bias[n, f, 0, 0], zero), name="o")
    return _module(x, w, bias, out)


def depthwise():
    x, w = te.placeholder((1, 32, 15, 15), name="x"), te.placeholder((32, 1, 3, 3), name="w")
    y, z = te.reduce_axis((0, 3), name="y"), te.reduce_axis((0, 3), name="z")
    shape = (1, 32, 7, 7)
    out = te.compute(
        shape, lambda n, c, h, v: te.sum(x[n, c, h * 2 + y, v * 2 + z] * w[c, 0, y, z], axis=[y, z]), name="depthwise"
    )
    return _module(x, w, out)


def softmax():
    x = te.placeholder((48, 100), name="x")
    k, r = te.reduce_axis((0, 100), name="k"), te.reduce_axis((0, 100), name="r")
    biggest = te.compute((48,), lambda i: te.max(x[i, k], axis=k), name="biggest")
    power = te.compute((48, 100), lambda i, j: tirx.exp(x[i, j] - biggest[i]), name="power")
    total = te.compute((48,), lambda i: te.sum(power[i, r], axis=r), name="total")
    return _module(x, te.compute((48, 100), lambda i, j: power[i, j] / total[i], name="out"))


def layer_norm():
    x, scale = te.placeholder((64, 96), name="x"), te.placeholder((96,), name="scale")
    k, r = te.reduce_axis((0, 96), name="k"), te.reduce_axis((0, 96), name="r")
    total = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="total")
    squares = te.compute((64,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="squares")
    n = tirx.const(96.0, "float32")

    def normal(i, j):
        mean = total[i] / n
        return (x[i, j] - mean) * tirx.rsqrt(squares[i] / n - mean * mean + tirx.const(1e-5, "float32")) * scale[j]

    return _module(x, scale, te.compute((64, 96), normal, name="norm"))


def max_pool():
    x = te.placeholder((1, 16, 17, 17), name="x")
    y, z = te.reduce_axis((0, 3), name="y"), te.reduce_axis((0, 3), name="z")
    shape = (1, 16, 8, 8)
    return _module(
        x, te.compute(shape, lambda n, c, h, v: te.max(x[n, c, h * 2 + y, v * 2 + z], axis=[y, z]), name="p")
    )


def elementwise():
    x, y = te.placeholder((32, 56, 3), name="x"), te.placeholder((32, 56, 3), name="y")
    half = tirx.const(0.5, "float32")
    out = te.compute((32, 56, 3), lambda i, j, k: half * x[i, j, k] * (tirx.tanh(y[i, j, k]) + half), name="gelu")
    return _module(x, y, out)


def gather():
    table, rows = te.placeholder((1000, 64), name="table"), te.placeholder((80,), "int64", name="rows")
    return _module(table, rows, te.compute((80, 64), lambda i, j: table[rows[i], j], name="take"))


def transpose():
    x = te.placeholder((40, 24, 7), name="x")
    return _module(x, te.compute((7, 24 * 40), lambda i, j: x[j // 24, j % 24, i], name="t"))


def winograd_transform():
    """Product with a constant table that unrolling folds away."""
    x = te.placeholder((4, 4, 8, 32), name="x")
    rows = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))

    def table(i, j):
        value = tirx.const(0.0, "float32")
        for a in reversed(range(4)):
            for b in reversed(range(4)):
                here = tirx.all(i % 4 == a, j % 4 == b)
                value = tirx.Select(here, tirx.const(float(rows[a][b]), "float32"), value)
        return value

    a, b = te.reduce_axis((0, 4), name="a"), te.reduce_axis((0, 4), name="b")
    out = te.compute(
        (4, 4, 8, 32), lambda i, j, c, p: te.sum(x[a, b, c, p] * table(i, a) * table(j, b), axis=[a, b]), name="v"
    )
    return _module(x, out)


ALL = (
    matmul,
    half_matmul,
    conv2d,
    depthwise,
    softmax,
    layer_norm,
    max_pool,
    elementwise,
    gather,
    transpose,
    winograd_transform,
)


def task(make) -> Task:
    return Task(make.__name__, make.__name__, "other", make().script(show_meta=True), 0.0, 0.0)
