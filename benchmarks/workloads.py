"""The programs that benchmarks run on: sampled schedules of common operators for a CPU and a CUDA target."""

from __future__ import annotations

from typing import Any

from cdmpp import devices
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Program, Task

TARGETS = {"cpu": "xeon-icelake", "cuda": "a100"}


def tasks() -> dict[str, Task]:
    """Operator name -> task. Built with TE, so that no network importer is needed."""
    from tvm import te, topi

    def conv2d() -> list[Any]:
        data, weight = te.placeholder((1, 64, 56, 56), name="data"), te.placeholder((64, 64, 3, 3), name="weight")
        return [data, weight, topi.nn.relu(topi.nn.conv2d_nchw(data, weight, 1, 1, 1))]

    def matmul() -> list[Any]:
        a, b = te.placeholder((512, 512), name="a"), te.placeholder((512, 512), name="b")
        k = te.reduce_axis((0, 512), name="k")
        return [a, b, te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]

    def softmax() -> list[Any]:
        data = te.placeholder((512, 512), name="data")
        return [data, topi.nn.softmax(data)]

    def elementwise() -> list[Any]:
        a, b = te.placeholder((1, 256, 56, 56), name="a"), te.placeholder((1, 256, 56, 56), name="b")
        return [a, b, te.compute(a.shape, lambda *i: te.max(a[i] + b[i], te.const(0.0, "float32")), name="c")]

    built = {}
    for make in (conv2d, matmul, softmax, elementwise):
        module = te.create_prim_func(make())
        name = make.__name__
        built[name] = Task(name, name, name, _script(module), 1.0, 1.0)
    return built


def _script(function: Any) -> str:
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")}).script()


def sampled(each: int, seed: int = 0) -> dict[tuple[str, str], list[Program]]:
    """(operator, target kind) -> up to ``each`` distinct scheduled programs."""
    return {
        (name, kind): sample_programs(task, dict(devices.get(device).target), each, seed)
        for name, task in tasks().items()
        for kind, device in TARGETS.items()
    }
