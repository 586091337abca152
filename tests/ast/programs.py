"""Fixed scheduled programs: written by hand, so that the expected numbers can be worked out on paper."""

from __future__ import annotations

import tvm
from tvm import s_tir, te, tirx

CPU = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1})
CUDA = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_80",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
)


def _matmul(m: int, n: int, k: int):
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def matmul_cpu():
    """64 x 64 x 64: parallel rows of 8, vector of 16, four rows unrolled."""
    schedule = s_tir.Schedule(_matmul(64, 64, 64))
    block = schedule.get_sblock("C", func_name="main")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [8, 8])
    j0, j1 = schedule.split(j, [4, 16])
    schedule.reorder(i0, j0, k, i1, j1)
    schedule.parallel(i0)
    schedule.vectorize(j1)
    schedule.unroll(i1)
    schedule.decompose_reduction(block, k)
    return schedule.mod, CPU


def matmul_cuda():
    """128 x 128 x 64: 32 x 32 tiles in shared memory, 64 threads, 16 accumulators a thread."""
    schedule = s_tir.Schedule(_matmul(128, 128, 64))
    block = schedule.get_sblock("C", func_name="main")
    local = schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    i0, i1, i2 = schedule.split(i, [4, 8, 4])
    j0, j1, j2 = schedule.split(j, [4, 8, 4])
    k0, k1 = schedule.split(k, [8, 8])
    schedule.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    schedule.bind(schedule.fuse(i0, j0), "blockIdx.x")
    thread = schedule.fuse(i1, j1)
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(local, thread)
    for index in (0, 1):
        shared = schedule.cache_read(block, index, "shared")
        schedule.compute_at(shared, k0)
        fused = schedule.fuse(*schedule.get_loops(shared)[-2:])
        _, bound, _ = schedule.split(fused, [None, 64, 4])
        schedule.bind(bound, "threadIdx.x")
        schedule.vectorize(schedule.get_loops(shared)[-1])
    schedule.unroll(i2)
    schedule.unroll(j2)
    schedule.unroll(k1)
    schedule.decompose_reduction(block, k0)
    return schedule.mod, CUDA


def conv2d_bias_relu_cuda():
    """1 x 8 x 16 x 16, 3 x 3, padding 1, 16 filters: padding inlined, bias and ReLU fused, 256 threads a block."""
    data = te.placeholder((1, 8, 16, 16), name="data")
    weight = te.placeholder((16, 8, 3, 3), name="weight")
    bias = te.placeholder((1, 16, 1, 1), name="bias")
    pad = te.compute(
        (1, 8, 18, 18),
        lambda n, c, h, w: tirx.if_then_else(
            tirx.all(h >= 1, h < 17, w >= 1, w < 17), data[n, c, h - 1, w - 1], tirx.const(0.0, "float32")
        ),
        name="pad",
    )
    rc, ry, rx = (te.reduce_axis((0, e), name=n) for e, n in ((8, "rc"), (3, "ry"), (3, "rx")))
    conv = te.compute(
        (1, 16, 16, 16),
        lambda n, f, h, w: te.sum(pad[n, rc, h + ry, w + rx] * weight[f, rc, ry, rx], axis=[rc, ry, rx]),
        name="conv",
    )
    out = te.compute(
        (1, 16, 16, 16),
        lambda n, f, h, w: tirx.max(conv[n, f, h, w] + bias[n, f, 0, 0], tirx.const(0.0, "float32")),
        name="relu",
    )
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, weight, bias, out])}))
    schedule.compute_inline(schedule.get_sblock("pad", func_name="main"))
    relu = schedule.get_sblock("relu", func_name="main")
    _, f, h, w = schedule.get_loops(relu)
    schedule.bind(f, "blockIdx.x")
    thread = schedule.fuse(h, w)
    schedule.bind(thread, "threadIdx.x")
    convolution = schedule.get_sblock("conv", func_name="main")
    schedule.set_scope(convolution, 0, "local")
    schedule.compute_at(convolution, thread)
    schedule.annotate(schedule.get_loops(relu)[1], "pragma_auto_unroll_max_step", 16)
    schedule.annotate(schedule.get_loops(relu)[1], "pragma_unroll_explicit", 1)
    schedule.decompose_reduction(convolution, schedule.get_loops(convolution)[-3])
    return schedule.mod, CUDA


def _softmax(rows: int, columns: int):
    x = te.placeholder((rows, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    biggest = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="biggest")
    power = te.compute((rows, columns), lambda i, j: tirx.exp(x[i, j] - biggest[i]), name="power")
    r = te.reduce_axis((0, columns), name="r")
    total = te.compute((rows,), lambda i: te.sum(power[i, r], axis=r), name="total")
    out = te.compute((rows, columns), lambda i, j: power[i, j] / total[i], name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, out])})


def softmax_cpu():
    """32 x 100, as written: four passes, the last two vectorised by 4."""
    schedule = s_tir.Schedule(_softmax(32, 100))
    for name in ("power", "out"):
        _, j = schedule.get_loops(schedule.get_sblock(name, func_name="main"))
        _, inner = schedule.split(j, [25, 4])
        schedule.vectorize(inner)
    return schedule.mod, CPU


def softmax_cuda():
    """32 x 100 in four launches: one thread a row for the reductions, one thread an element for the rest."""
    schedule = s_tir.Schedule(_softmax(32, 100))
    for name in ("biggest", "total"):
        i = schedule.get_loops(schedule.get_sblock(name, func_name="main"))[0]
        i0, i1 = schedule.split(i, [1, 32])
        schedule.bind(i0, "blockIdx.x")
        schedule.bind(i1, "threadIdx.x")
    for name in ("power", "out"):
        i, j = schedule.get_loops(schedule.get_sblock(name, func_name="main"))
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
    return schedule.mod, CUDA


GOLDEN = {f.__name__: f for f in (matmul_cpu, matmul_cuda, conv2d_bias_relu_cuda, softmax_cpu, softmax_cuda)}
