"""One small task and a dozen schedules of it, made by hand: a tenth of the time that sampling takes."""

from __future__ import annotations

from cdmpp.programs.task import Task

MATMUL = """@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0.0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
TASK = Task("0" * 16, "matmul", "matmul", MATMUL, 2.0 * 64**3, 3 * 64 * 64 * 4, {"tiny": 1}, "test")


def schedules() -> list[str]:
    """Traces that split one loop."""
    import tvm

    from cdmpp.programs.replay import parse_workload
    from cdmpp.programs.sampling import trace_json

    texts = []
    for axis in range(3):
        for factor in (2, 4, 8, 16):
            schedule = tvm.s_tir.Schedule(parse_workload(MATMUL), debug_mask="none")
            schedule.split(schedule.get_loops(schedule.get_sblock("C"))[axis], [None, factor])
            texts.append(trace_json(schedule))
    return texts


def cuda_schedules() -> list[str]:
    """The same for a GPU: rows to blocks, columns to threads, the reduction split."""
    import tvm

    from cdmpp.programs.replay import parse_workload
    from cdmpp.programs.sampling import trace_json

    texts = []
    for factor in (2, 4, 8):
        schedule = tvm.s_tir.Schedule(parse_workload(MATMUL), debug_mask="none")
        i, j, k = schedule.get_loops(schedule.get_sblock("C"))
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
        schedule.split(k, [None, factor])
        texts.append(trace_json(schedule))
    return texts
