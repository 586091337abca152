"""What is read of a program as it is scheduled has every bit of what is read of it once TVM has lowered it."""

import random
import sys
from pathlib import Path

import pytest

tvm = pytest.importorskip("tvm")
sys.path.insert(0, str(Path(__file__).parent))

import programs  # noqa: E402
import workloads  # noqa: E402
from random_schedules import random_schedule  # noqa: E402
from tvm import te, tirx  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from cdmpp import devices  # noqa: E402
from cdmpp.ast.extract import extract, is_gpu_target  # noqa: E402
from cdmpp.ast.lowering import lower  # noqa: E402
from cdmpp.ast.native import read_scheduled, summarize  # noqa: E402
from cdmpp.ast.unlowered import doubts, passes, read_unlowered  # noqa: E402
from cdmpp.data.records import read_records, read_tasks  # noqa: E402
from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.replay import parse_target, replay  # noqa: E402
from cdmpp.programs.sampling import sample_programs  # noqa: E402

DATASETS = Path(__file__).parents[2] / "datasets"
ARRAYS = ("leaf_features", "leaf_positions", "leaf_serial_positions", "leaf_kernels", "kernel_features")


def bits(ast):
    return [(getattr(ast, name).shape, getattr(ast, name).tobytes()) for name in ARRAYS]


def share_read(modules, target):
    """Of those that are read without lowering, after checking each; NaN is a number like others here."""
    gpu = is_gpu_target(target)
    found = [(module, ast) for module in modules if (ast := read_unlowered([module], gpu, True)[0]) is not None]
    for module, ast in found:
        assert bits(ast) == bits(summarize(lower(module, target), gpu)), module.script()
    return len(found) / len(modules)


@pytest.mark.parametrize(
    ("name", "least"),
    [("xeon-icelake", 0.7), ("epyc-genoa", 0.7), ("epyc-genoa-training", 0.5), ("xeon-icelake-2c", 0.7), ("h100", 0.4)],
)
def test_shipped_programs(name, least):
    records, tasks = list(read_records(DATASETS / name)), read_tasks(DATASETS / name)
    drawn = random.Random(5).sample(records, 24)
    modules = [replay(tasks[r.task_id].workload, r.schedule, r.target).module for r in drawn]
    assert share_read(modules, parse_target(drawn[0].target)) >= least


@pytest.mark.parametrize("make", workloads.ALL, ids=lambda make: make.__name__)
def test_searched_programs_of_a_cpu(make):
    found = sample_programs(workloads.task(make), programs.CPU, 16, seed=11)
    share_read([program.module for program in found], programs.CPU)


@pytest.mark.parametrize("make", [workloads.matmul, workloads.softmax, workloads.layer_norm, workloads.transpose])
def test_searched_programs_of_a_gpu(make):
    target = parse_target(devices.get("a100").target)
    found = sample_programs(workloads.task(make), target, 6, seed=11, mutants=0.0)
    share_read([program.module for program in found], target)


@pytest.mark.parametrize("make", workloads.ALL, ids=lambda make: make.__name__)
def test_random_schedules(make):
    module = make()
    share_read([random_schedule(module, seed) for seed in range(16)], programs.CPU)


def test_random_schedules_hold_what_users_schedule():
    texts = "".join(random_schedule(make(), seed).script() for make in workloads.ALL for seed in range(16))
    for construct in ("vectorized", "unroll(", "parallel", "_rf", "_init", "_global", "T.where", "pragma_auto_unroll"):
        assert construct in texts, construct


def test_written_programs_are_read():
    for make in programs.GOLDEN.values():
        module, target = make()
        share_read([module], target)
    for make in (programs.matmul_cpu, programs.matmul_cuda):
        module, target = make()
        assert share_read([module], target) == 1.0


def reshaped():
    """A schedule that fuses and splits what is computed at quotients of quotients."""
    x = te.placeholder((24, 24, 96), name="x")

    def value(i, j):
        row = (j // 96 + i) % 576
        return x[row // 24, row % 24, j % 96]

    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": te.create_prim_func([x, te.compute((576, 96), value, name="y")])})
    )
    schedule.vectorize(schedule.split(schedule.fuse(*schedule.get_loops(schedule.get_sblock("y"))), [None, 64])[1])
    return schedule.mod


def bounded():
    """Behind ``k // 128 == 0`` TVM writes k for k % 128."""
    schedule = tvm.s_tir.Schedule(workloads.matmul())
    i, j, k = schedule.get_loops(schedule.get_sblock("C"))
    schedule.reorder(i, k, j)
    schedule.fuse(k, j)
    return schedule.mod


def clipped():
    """An integer that is no sum: the smaller of two."""
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[tirx.min(i * 2, 63)], name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def loaded():
    """A row whose number is read through a buffer of the program's own."""
    schedule = tvm.s_tir.Schedule(workloads.gather())
    block = schedule.get_sblock("take")
    schedule.compute_at(schedule.cache_read(block, 1, "global"), schedule.get_loops(block)[0])
    return schedule.mod


@pytest.mark.parametrize("make", [reshaped, bounded, clipped])
def test_stores_in_doubt_are_simplified_alone(make):
    module = make()
    assert share_read([module], programs.CPU) == 1.0
    assert doubts(module, False) == []


def test_regions_of_buffers_are_proven():
    """Rows begin at a quotient of the loop around; of the columns not all are needed."""

    def value(f, j):
        return te.sum(pad[f // 4 * 4 + k, j * 2 + k], axis=k)

    x = te.placeholder((32, 30), name="x")
    pad = te.compute((32, 40), lambda i, j: tirx.if_then_else(j < 30, x[i, j], tirx.const(0.0, "float32")), name="pad")
    k = te.reduce_axis((0, 4), name="k")
    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": te.create_prim_func([x, te.compute((32, 17), value, name="y")])})
    )
    block = schedule.get_sblock("y")
    schedule.parallel(schedule.get_loops(block)[0])
    schedule.compute_at(schedule.get_sblock("pad"), schedule.get_loops(block)[0])
    schedule.decompose_reduction(block, schedule.get_loops(block)[-1])
    (guess,) = read_unlowered([schedule.mod], False, False)
    assert bits(guess) == bits(summarize(lower(schedule.mod, programs.CPU), False))
    assert share_read([schedule.mod], programs.CPU) == 1.0


def clamped():
    """A row of a buffer of the program's own that is reached from a loop around it, but only up to its end."""
    x = te.placeholder((50, 8), name="x")
    y = te.compute((50, 8), lambda i, j: x[i, j] * 2.0, name="y")
    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": te.create_prim_func([x, te.compute((50, 8), lambda i, j: y[i, j] + 1.0, name="z")])})
    )
    outer, _ = schedule.split(schedule.get_loops(schedule.get_sblock("z"))[0], [None, 16])
    schedule.compute_at(schedule.get_sblock("y"), outer)
    return schedule.mod


REASONS = {
    loaded: "an index that is loaded from a buffer of the program's own",
    clamped: "a buffer that is only reached behind a condition",
}


@pytest.mark.parametrize("make", REASONS)
def test_what_is_doubtful_is_lowered(make):
    module = make()
    assert REASONS[make] in doubts(module, False)
    assert read_unlowered([module], False, True) == [None]
    assert bits(extract(module, programs.CPU)) == bits(summarize(lower(module, programs.CPU), False))


@pytest.mark.parametrize("make", [reshaped, bounded, loaded])
def test_what_is_doubtful_would_have_been_wrong(make):
    module = make()
    (guess,) = read_scheduled([module], passes(), False, 300, 1, False)
    assert bits(guess) != bits(summarize(lower(module, programs.CPU), False))


def test_refusals_are_those_of_lowering():
    n = tirx.Var("n", "int32")
    x = te.placeholder((n,), name="x")
    symbolic = tvm.IRModule({"main": te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")])})
    assert read_unlowered([symbolic], False, True) == [None]
    with pytest.raises(UnsupportedProgramError, match="symbolic"):
        extract(symbolic, programs.CPU)

    @T.prim_func(s_tir=True)
    def waits(a: T.Buffer((4,), "float32")):
        while a[0] < 1.0:
            a[0] = a[0] + 1.0

    assert read_unlowered([tvm.IRModule({"main": waits})], False, True) == [None]
    with pytest.raises(UnsupportedProgramError, match="while"):
        extract(tvm.IRModule({"main": waits}), programs.CPU)
    assert read_unlowered([waits, "text"], False, True) == [None, None]


@pytest.mark.parametrize("other", [0.0, 1.0])
def test_a_choice_within_a_choice(other):
    """TVM makes one choice of both where their other arms are equal, as in transposed convolutions."""
    a = te.placeholder((34, 8), name="a")
    made = te.compute(
        (32, 8),
        lambda i, j: te.if_then_else(
            i >= 2, te.if_then_else(j % 2 == 0, a[i + 2, j], tirx.const(0.0)), tirx.const(other)
        ),
        name="made",
    )
    module = tvm.IRModule({"main": te.create_prim_func([a, made])})
    assert share_read([module], programs.CPU) == 1
