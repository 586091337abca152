from __future__ import annotations

import json
import subprocess
import sys

import pytest

tvm = pytest.importorskip("tvm")
import tvm_ffi  # noqa: E402

from cdmpp.programs.replay import parse_target, parse_workload, replay  # noqa: E402
from cdmpp.programs.sampling import _schedules, default_program, sample_programs, trace_json  # noqa: E402
from cdmpp.programs.task import Task  # noqa: E402

TARGET = {"kind": "llvm", "num-cores": 1}
MATMUL = """@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 64), "float32"), B: T.Buffer((64, 48), "float32"), C: T.Buffer((32, 48), "float32")):
        for i, j, k in T.grid(32, 48, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0.0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
ADD = """@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
        for i, j in T.grid(64, 64):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + T.float32(1.0)
"""


def task(workload: str) -> Task:
    return Task("0" * 16, "toy", "matmul", workload, 1.0, 1.0)


def test_programs_are_distinct_and_replay_to_themselves() -> None:
    programs = sample_programs(task(MATMUL), TARGET, 12, seed=5)
    assert len(programs) == 12
    assert len({tvm_ffi.structural_hash(program.module) for program in programs}) == 12
    for program in programs:
        instructions, _ = json.loads(program.trace)
        assert instructions
        again = replay(MATMUL, program.trace, TARGET)
        assert tvm_ffi.structural_equal(again.module, program.module)


def test_the_same_seed_gives_the_same_schedules() -> None:
    first, second, other = (sample_programs(task(MATMUL), TARGET, 8, seed=seed) for seed in (7, 7, 8))
    assert [p.trace for p in first] == [p.trace for p in second]
    assert [p.trace for p in first] != [p.trace for p in other]


def test_the_first_draws_are_those_of_all_draws() -> None:
    target, module = parse_target(TARGET), parse_workload(MATMUL)
    some, every = (_schedules(module, target, "replay-trace", 11, 7, first) for first in (8, None))
    assert len(some) == 8
    assert len(every) == 11
    assert list(map(trace_json, some)) == list(map(trace_json, every[:8]))


def test_a_gpu_is_drawn_for_once_and_has_what_two_runs_find(monkeypatch) -> None:
    target = {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    runs = []

    def counted(*given):
        runs.append(_schedules(*given))
        return runs[-1]

    monkeypatch.setattr("cdmpp.programs.sampling._schedules", counted)
    found = [program.trace for program in sample_programs(task(MATMUL), target, 4, seed=5, mutants=0.0)]
    assert len(found) == 4
    assert len(runs) == 1
    parsed = parse_target(target)
    some, every = (_schedules(parse_workload(MATMUL), parsed, "replay-trace", 6, 5, first) for first in (4, None))
    assert found == list(dict.fromkeys(map(trace_json, [*some, *every])))[:4]


def test_elementwise_tasks_have_one_schedule() -> None:
    assert len(sample_programs(task(ADD), TARGET, 8, seed=0)) == 1


def test_only_what_schedules_for_the_target_may_use_is_imported() -> None:
    script = f"""
import sys
from cdmpp.programs.intrinsics import _bare_stacks
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Task
task = Task("0" * 16, "toy", "matmul", {MATMUL!r}, 1.0, 1.0)
target = {{"kind": "llvm", "mcpu": "icelake-server", "num-cores": 1}}
lean = [program.trace for program in sample_programs(task, target, 6, seed=5)]
loaded = {{name.rpartition(".")[2] for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin")}}
assert loaded == {{"x86"}}, loaded
with _bare_stacks():
    import tvm.s_tir.tensor_intrin as all_of_them
assert all_of_them.x86 and all_of_them.cuda
assert lean == [program.trace for program in sample_programs(task, target, 6, seed=5)]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_default_schedule_of_a_gpu_leaves_the_task_as_it_was():
    before = int(tvm_ffi.structural_hash(parse_workload(MATMUL)))
    program = default_program(task(MATMUL), {"kind": "cuda", "arch": "sm_80", "max_num_threads": 1024})
    assert int(tvm_ffi.structural_hash(program.module)) != before
    assert int(tvm_ffi.structural_hash(parse_workload(MATMUL))) == before
