"""A dozen kernels that lean on different parts of a CPU: a model is calibrated to a device by few measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tirx

from cdmpp.programs.identity import flops, io_bytes, op_class, task_id
from cdmpp.programs.task import Task

Kernel = tuple[list[Any], Any]
"""Inputs and output, as TE has them."""


def calibration_tasks() -> list[Task]:
    """Make one task of each kernel, those that tell most first."""
    return [_task(name, kernel) for name, kernel in _KERNELS.items()]


def _task(name: str, kernel: Callable[[], Kernel]) -> Task:
    inputs, output = kernel()
    function = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    counts = flops(module), io_bytes(module)
    return Task(
        task_id(module), name, op_class(name, module), module.script(), *counts, {"calibration": 1}, "calibration"
    )


def _matmul(m: int, k: int, n: int) -> Kernel:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    return [a, b], te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="matmul")


def _dense(rows: int, inputs: int, outputs: int) -> Kernel:
    x, w = te.placeholder((rows, inputs), name="x"), te.placeholder((outputs, inputs), name="w")
    r = te.reduce_axis((0, inputs), name="r")
    return [x, w], te.compute((rows, outputs), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="dense")


def _conv2d(channels: int, size: int, filters: int, kernel: int) -> Kernel:
    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((filters, channels, kernel, kernel), name="w")
    c, p, q = (te.reduce_axis((0, n), name=name) for n, name in ((channels, "c"), (kernel, "p"), (kernel, "q")))
    out = size - kernel + 1
    return [x, w], te.compute(
        (1, filters, out, out),
        lambda b, f, i, j: te.sum(x[b, c, i + p, j + q] * w[f, c, p, q], axis=[c, p, q]),
        name="conv2d",
    )


def _depthwise(channels: int, size: int, kernel: int) -> Kernel:
    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((channels, 1, kernel, kernel), name="w")
    p, q = te.reduce_axis((0, kernel), name="p"), te.reduce_axis((0, kernel), name="q")
    out = size - kernel + 1
    return [x, w], te.compute(
        (1, channels, out, out),
        lambda b, c, i, j: te.sum(x[b, c, i + p, j + q] * w[c, 0, p, q], axis=[p, q]),
        name="depthwise_conv2d",
    )


def _elementwise(elements: int, of: Callable[[Any], Any]) -> Kernel:
    x = te.placeholder((elements,), name="x")
    return [x], te.compute((elements,), lambda i: of(x[i]), name="elementwise")


def _sum(rows: int, columns: int, axis: int) -> Kernel:
    x = te.placeholder((rows, columns), name="x")
    r = te.reduce_axis((0, (rows, columns)[axis]), name="r")
    kept = (rows, columns)[1 - axis]
    return [x], te.compute((kept,), lambda i: te.sum(x[i, r] if axis else x[r, i], axis=r), name="sum")


def _max_pool(channels: int, size: int) -> Kernel:
    x = te.placeholder((1, channels, size, size), name="x")
    p, q = te.reduce_axis((0, 3), name="p"), te.reduce_axis((0, 3), name="q")
    out = (size - 3) // 2 + 1
    return [x], te.compute(
        (1, channels, out, out),
        lambda b, c, i, j: te.max(x[b, c, 2 * i + p, 2 * j + q], axis=[p, q]),
        name="max_pool2d",
    )


def _softmax(rows: int, columns: int) -> Kernel:
    x = te.placeholder((rows, columns), name="x")
    r, s = te.reduce_axis((0, columns), name="r"), te.reduce_axis((0, columns), name="s")
    top = te.compute((rows,), lambda i: te.max(x[i, r], axis=r), name="softmax_max")
    raised = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]), name="softmax_exp")
    total = te.compute((rows,), lambda i: te.sum(raised[i, s], axis=s), name="softmax_sum")
    return [x], te.compute((rows, columns), lambda i, j: raised[i, j] / total[i], name="softmax")


def _transpose(rows: int, columns: int) -> Kernel:
    x = te.placeholder((rows, columns), name="x")
    return [x], te.compute((columns, rows), lambda i, j: x[j, i], name="transpose")


_KERNELS: dict[str, Callable[[], Kernel]] = {
    "matmul": lambda: _matmul(128, 128, 128),
    "add_large": lambda: _elementwise(1 << 22, lambda v: v * tirx.const(0.5, "float32") + tirx.const(1, "float32")),
    "add_small": lambda: _elementwise(2048, lambda v: v + tirx.const(1, "float32")),
    "conv2d": lambda: _conv2d(32, 30, 64, 3),
    "sum_rows": lambda: _sum(256, 1024, 1),
    "dense_vector": lambda: _dense(1, 1024, 1024),
    "depthwise": lambda: _depthwise(64, 30, 3),
    "softmax": lambda: _softmax(64, 512),
    "max_pool": lambda: _max_pool(64, 57),
    "exp": lambda: _elementwise(1 << 16, te.exp),
    "transpose": lambda: _transpose(512, 512),
    "matmul_wide": lambda: _matmul(64, 512, 512),
    "sum_columns": lambda: _sum(1024, 256, 0),
}
