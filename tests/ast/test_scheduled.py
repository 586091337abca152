"""Scheduled programs are read without lowering them, and nearly all of their numbers are those of the lowered ones."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from benchmarks.workloads import tasks  # noqa: E402
from cdmpp import devices  # noqa: E402
from cdmpp.ast import lowering  # noqa: E402
from cdmpp.ast.extract import extract  # noqa: E402
from cdmpp.ast.layout import KERNEL_NAMES, LEAF_NAMES  # noqa: E402
from cdmpp.ast.native import read_scheduled  # noqa: E402
from cdmpp.ast.scheduled import extract_scheduled  # noqa: E402
from cdmpp.ast.unlowered import passes  # noqa: E402
from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.replay import parse_target  # noqa: E402
from cdmpp.programs.sampling import sample_programs  # noqa: E402

COUNTED = {
    *("ops_int", "ops_intdiv", "ops_compare", "ops_bool", "int_ops_per_iteration"),
    *("int_per_thread", "intdiv_iterations"),
}
"""Integer operations: how many TVM's simplifier leaves is guessed."""


def programs(device, name, n, mutants=0.0):
    target = parse_target(devices.get(device).target)
    return [p.module for p in sample_programs(tasks()[name], target, n, seed=7, mutants=mutants)], target


def differing(read, lowered):
    """Names of the numbers that differ; None where the trees do."""
    if read.leaf_features.shape != lowered.leaf_features.shape:
        return None
    for place in ("leaf_positions", "leaf_serial_positions", "leaf_kernels"):
        if not np.array_equal(getattr(read, place), getattr(lowered, place)):
            return None
    found = set()
    for mine, theirs, names in (
        (read.leaf_features, lowered.leaf_features, LEAF_NAMES),
        (read.kernel_features, lowered.kernel_features, KERNEL_NAMES),
    ):
        wrong = ~np.isclose(mine, theirs, rtol=1e-5, atol=1e-5)
        found |= {names[i] for i in np.flatnonzero(wrong.any(axis=0))}
    return found


@pytest.mark.parametrize(
    ("device", "n"), [("xeon-icelake", 40), ("epyc-genoa-2c", 16), ("a100", 6)], ids=["one core", "two cores", "cuda"]
)
@pytest.mark.parametrize("name", ["matmul", "softmax", "conv2d", "elementwise"])
def test_what_is_read_is_what_lowering_gives(device, n, name):
    modules, target = programs(device, name, n, mutants=0.25 if device != "a100" else 0.0)
    found = [differing(extract_scheduled(module, target), extract(module, target)) for module in modules]
    assert all(one is not None for one in found)
    others = [one - COUNTED for one in found]
    assert sum(not one for one in others) >= 0.95 * len(modules), sorted(set().union(*others))
    if device != "a100":
        assert sum(not one for one in found) >= 0.85 * len(modules)


def test_programs_of_cpus_are_read_without_a_pass_of_tvm():
    modules, _ = programs("xeon-icelake", "matmul", 12)
    nothing = (tvm.transform.Sequential([tvm.tirx.transform.Filter(lambda _: False)]),) * 2  # would leave no function
    assert all(ast is not None for ast in read_scheduled(modules, nothing, False, 300, 2, True))


def test_what_is_not_decomposed_is_lowered_a_little():
    from tvm.s_tir import Schedule

    from cdmpp.programs.replay import parse_workload

    module = Schedule(parse_workload(tasks()["matmul"].workload)).mod  # with its initial value inside
    target = parse_target(devices.get("xeon-icelake").target)
    nothing = tvm.transform.Sequential([])
    assert read_scheduled([module], (nothing, nothing), False, 300, 1, False) == [None]
    assert read_scheduled([module], passes(), False, 300, 1, False) != [None]
    assert not differing(extract_scheduled(module, target), extract(module, target)) - COUNTED


def test_what_is_nested_too_deep_is_refused_not_crashed_on():
    from tvm import te

    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: sum((a[i] * float(n) for n in range(3000)), a[i]), name="b")
    module = tvm.IRModule({"main": te.create_prim_func([a, b])})
    with pytest.raises(UnsupportedProgramError, match="nested more than"):
        extract_scheduled(module, parse_target(devices.get("xeon-icelake").target))


def test_a_program_without_threads_is_refused_for_a_gpu():
    modules, _ = programs("xeon-icelake", "matmul", 1)
    with pytest.raises(UnsupportedProgramError, match="not scheduled for this target"):
        extract_scheduled(modules[0], parse_target(devices.get("a100").target))


def test_what_tvm_raises_is_said(monkeypatch):
    def refuse():
        def run(_module):
            raise tvm.error.InternalError("no such luck")

        return run

    monkeypatch.setattr(lowering, "_passes", refuse)
    modules, target = programs("xeon-icelake", "elementwise", 1)
    with pytest.raises(UnsupportedProgramError, match="no such luck"):
        lowering.lower(modules[0], target)
