"""The compiled extractor gives what the readable reference gives on hundreds of programs, and refuses the same."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
sys.path.insert(0, str(Path(__file__).parent))

import programs  # noqa: E402
import workloads  # noqa: E402
from tvm import te  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from cdmpp.ast.extract import extract, extract_many, is_gpu_target  # noqa: E402
from cdmpp.ast.layout import KERNEL_NAMES, LEAF_NAMES  # noqa: E402
from cdmpp.ast.lowering import lower  # noqa: E402
from cdmpp.ast.native import summarize  # noqa: E402
from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.replay import replay  # noqa: E402
from cdmpp.programs.sampling import sample_programs  # noqa: E402
from tests.reference.extract import extract_readable  # noqa: E402
from tests.reference.summarise import summarise  # noqa: E402
from tests.reference.walk import walk  # noqa: E402


def assert_equal(expected, found) -> None:
    for name in ("leaf_positions", "leaf_serial_positions", "leaf_kernels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for name, columns in (("leaf_features", LEAF_NAMES), ("kernel_features", KERNEL_NAMES)):
        a, b = getattr(expected, name), getattr(found, name)
        assert a.shape == b.shape and a.dtype == b.dtype
        differs = ~np.isclose(a, b, rtol=1e-6, atol=1e-7)
        first = [(int(r), columns[c], float(a[r, c]), float(b[r, c])) for r, c in np.argwhere(differs)[:5]]
        assert not first, f"{name} (row, column, readable, compiled): {first}"
    assert expected.target_kind == found.target_kind


def check(module, target) -> None:
    function, gpu = lower(module, target), is_gpu_target(target)
    assert_equal(summarise(walk(function), gpu), summarize(function, gpu))


@pytest.mark.parametrize("make", workloads.ALL, ids=lambda make: make.__name__)
def test_equal_on_sampled_cpu_programs(make):
    found = sample_programs(workloads.task(make), programs.CPU, 24, seed=3)
    assert found
    for program in found:
        check(program.module, program.target)


@pytest.mark.parametrize("make", [workloads.softmax, workloads.layer_norm, workloads.max_pool, workloads.transpose])
def test_equal_on_sampled_cuda_programs(make):
    for program in sample_programs(workloads.task(make), programs.CUDA, 8, seed=5):
        check(program.module, program.target)


@pytest.mark.slow
@pytest.mark.parametrize("make", [workloads.matmul, workloads.half_matmul, workloads.conv2d])
def test_equal_on_sampled_tiled_cuda_programs(make):
    for program in sample_programs(workloads.task(make), programs.CUDA, 8, seed=5):
        check(program.module, program.target)


@pytest.mark.parametrize("name", programs.GOLDEN)
def test_equal_on_golden_programs(name):
    check(*programs.GOLDEN[name]())


def a100_folders() -> list[Path]:
    roots = [Path(p) for p in os.environ.get("CDMPP_DATA", "").split(os.pathsep) if p]
    roots.append(Path(__file__).parents[3] / "shared" / "data")
    return sorted({f.parent for root in roots for f in root.glob("a100-metaschedule/*/workload_tvmscript.json.gz")})


@pytest.mark.skipif(not a100_folders(), reason="no A100 databases: set CDMPP_DATA to the folder that holds them")
@pytest.mark.parametrize("folder", a100_folders(), ids=lambda folder: folder.name)
def test_equal_on_a100_records(folder, n=24):
    with gzip.open(folder / "workload_tvmscript.json.gz", "rt") as file:
        scripts = {entry["index"]: entry["tvmscript"] for entry in json.load(file)}
    by_workload: dict[int, list] = {}
    with gzip.open(folder / "database_tuning_record.json.gz", "rt") as file:
        for line in file:
            workload, (trace, seconds, *_) = json.loads(line)
            if min(seconds) < 1e9:
                by_workload.setdefault(workload, []).append(trace)
    rng = random.Random(7)
    # Two of each workload: Winograd, direct convolution, pooling and dense layers are all among them.
    chosen = [(w, t) for w, traces in sorted(by_workload.items()) for t in rng.sample(traces, min(2, len(traces)))]
    for workload, trace in rng.sample(chosen, min(n, len(chosen))):
        program = replay(scripts[workload], json.dumps(trace), programs.CUDA)
        check(program.module, program.target)


@T.prim_func
def lowered_with_branches(a: T.Buffer((4, 100), "float32"), b: T.Buffer((100,), "float32"), n: T.Buffer((1,), "int32")):
    for i in T.parallel(10):
        for j in T.serial(10, annotations={"pragma_auto_unroll_max_step": 16, "pragma_unroll_explicit": 1}):
            if i * 10 + j < 97:
                for k in T.unroll(4):
                    b[i * 10 + j] = b[i * 10 + j] + a[k, i * 10 + j] * T.float32(2)
            else:
                b[i * 10 + j] = T.Select(j % 2 == 0, T.float32(1), T.float32(0.5))
    for i in range(25):
        for j in T.vectorized(4):
            if n[0] > i:
                b[T.shift_right(i * 8, 1) + j] = T.if_then_else(i < 20, T.sqrt(b[i * 4 + j]), T.float32(0))


@T.prim_func
def no_store(a: T.Buffer((4,), "float32")):
    T.evaluate(a[0])


@T.prim_func
def while_loop(a: T.Buffer((4,), "float32")):
    while a[0] < T.float32(1):
        a[0] = a[0] + T.float32(1)


def symbolic():
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] + x[i], name="y")])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "bool", "float64"])
def test_equal_on_every_width(dtype):
    x = te.placeholder((8, 32), dtype, name="x")
    check(te.create_prim_func([x, te.compute((32, 8), lambda i, j: x[j, i], name="y")]), programs.CPU)


def test_equal_on_a_lowered_function():
    check(lowered_with_branches, programs.CPU)


@pytest.mark.parametrize("function", [no_store, while_loop, symbolic()], ids=["no store", "while loop", "symbolic"])
def test_refused_with_the_readable_message(function):
    with pytest.raises(UnsupportedProgramError) as readable:
        extract_readable(function, programs.CPU)
    with pytest.raises(UnsupportedProgramError) as fast:
        extract(function, programs.CPU)
    assert str(fast.value) == str(readable.value)


def test_extract_many_keeps_order_and_names_the_bad_one():
    found = sample_programs(workloads.task(workloads.matmul), programs.CPU, 6, seed=1)
    one_by_one = [extract(p.module, p.target) for p in found]
    for a, b in zip(one_by_one, extract_many(found), strict=True):
        assert_equal(a, b)
    bad = type(found[0])(no_store, programs.CPU, name="empty")
    with pytest.raises(UnsupportedProgramError, match=r"program 1 \(empty\): the program has no store"):
        extract_many([found[0], bad])
    assert extract_many([]) == []


@pytest.mark.parametrize("extract_one", [extract, extract_readable], ids=["compiled", "readable"])
def test_a_program_without_threads_is_refused_on_a_gpu(extract_one):
    module, _ = programs.softmax_cpu()
    with pytest.raises(UnsupportedProgramError, match="4 of 4 loop nests bind no loop to a GPU thread"):
        extract_one(module, programs.CUDA)


@pytest.mark.parametrize("extract_one", [extract, extract_readable], ids=["compiled", "readable"])
def test_one_block_of_one_thread_is_a_launch(extract_one):
    schedule = tvm.s_tir.Schedule(programs._matmul(4, 4, 4))
    outer = schedule.get_loops(schedule.get_sblock("C", func_name="main"))[0]
    for tag in ("blockIdx.x", "threadIdx.x"):
        unit = schedule.add_unit_loop(outer)
        schedule.bind(unit, tag)
    assert len(extract_one(schedule.mod, programs.CUDA).kernel_features) == 1
