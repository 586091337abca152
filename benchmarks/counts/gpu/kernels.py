"""GPU programs that are counted: small operators, TVM's default and sampled schedules, for two architectures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.counts import kernels as small
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.machine_code.gpu.cuda import Assembled, assembled
from cdmpp.machine_code.gpu.cuda_source import CudaSource, cuda_source
from cdmpp.programs.replay import parse_target
from cdmpp.programs.sampling import default_program, sample_programs
from cdmpp.programs.task import Program, Task

log = logging.getLogger(__name__)

DEVICES = {80: "a100", 90: "h100"}
DEFAULT, SAMPLED, EACH = "default", "sampled", 2
"""``EACH`` schedules are sampled."""
_POSITIVE = ("log", "rsqrt", "adam", "product")
"""Operators whose inputs are above zero."""
GPU_KERNELS: dict[str, tuple[str, Callable[..., list[Any]], tuple[Any, ...]]] = {
    "elementwise 64x96": ("elementwise", small._elementwise, (64, 96)),
    "elementwise 7x11x13": ("elementwise", small._elementwise, (7, 11, 13)),
    "tanh 31x33": ("elementwise", small._function, ("tanh", 31, 33)),
    "erf 1021": ("elementwise", small._function, ("erf", 1021)),
    "exp 64x64": ("elementwise", small._function, ("exp", 64, 64)),
    "log 511": ("elementwise", small._function, ("log", 511)),
    "rsqrt 17x65": ("elementwise", small._function, ("rsqrt", 17, 65)),
    "clipping 4099": ("elementwise", small._clipped, (4099,)),
    "padding 3x5x11x13": ("elementwise", small._padded, (3, 5, 11, 13)),
    "concatenation 19x21": ("elementwise", small._moves, (19, 21)),
    "gather 31 of 50x17": ("elementwise", small._gathered, (50, 17, 31)),
    "resize 13 to 29": ("elementwise", small._resized, (3, 13, 29)),
    "silu's gradient 23x47": ("elementwise", small._activation_gradient, (23, 47)),
    "adam 3001": ("elementwise", small._adam, (3001,)),
    "sum of 37x53 rows": ("reduce", small._reduce, ("sum", 37, 53, 1)),
    "sum of 64x256 rows": ("reduce", small._reduce, ("sum", 64, 256, 1)),
    "largest of 41x67 columns": ("reduce", small._reduce, ("max", 41, 67, 0)),
    "place of the largest of 29x61 rows": ("reduce", small._reduce, ("argmax", 29, 61, 1)),
    "product of 13x31 rows": ("reduce", small._reduce, ("prod", 13, 31, 1)),
    "matmul 64x64x64": ("matmul", small._matmul, (64, 64, 64)),
    "matmul 128x64x96": ("matmul", small._matmul, (128, 64, 96)),
    "matmul 65x127x33": ("matmul", small._matmul, (65, 127, 33)),
    "matmul 1x256x128": ("matmul", small._matmul, (1, 256, 128)),
    "batched matmul 4x32x48x32": ("matmul", small._matmul, (32, 48, 32, 4)),
    "matmul of int8 32x64x32": ("matmul", small._quantised, (32, 64, 32)),
    "gradient of matmul weights 64x48x80": ("matmul", small._matmul_gradient, (64, 48, 80)),
    "conv2d 16x14x14, 32 filters 3x3": ("conv2d", small._conv2d, (16, 14, 32, 3, 1, 1, 1)),
    "conv2d 8x16x16, 16 filters 3x3, stride 2": ("conv2d", small._conv2d, (8, 16, 16, 3, 2, 1, 1)),
    "conv2d 16x14x14, 32 filters 1x1": ("conv2d", small._conv2d, (16, 14, 32, 1, 1, 0, 1)),
    "depthwise conv2d 24x14x14, stride 2": ("depthwise", small._depthwise, (24, 14, 3, 2)),
    "depthwise conv2d 16x16x16": ("depthwise", small._depthwise, (16, 16, 3, 1)),
    "transposed conv2d 8x8x8, 8 filters 4x4": ("transposed conv", small._transposed, (8, 8, 8, 4, 2)),
    "conv1d 16x64, 16 filters": ("conv1d", small._conv1d, (16, 64, 16, 5, 1)),
    "average pool 7x19x19": ("pool", small._pool, ("avg", 7, 19, 3, 2)),
    "max pool 16x20x20": ("pool", small._pool, ("max", 16, 20, 3, 1)),
    "adaptive average pool 16 to 4": ("pool", small._adaptive, ("avg", 6, 16, 4)),
    "softmax 64x128": ("softmax", small._softmax, (64, 128)),
    "softmax 13x101": ("softmax", small._softmax, (13, 101)),
    "softmax's gradient 19x45": ("softmax", small._softmax_gradient, (19, 45)),
    "layer norm 11x77": ("norm", small._layer_norm, (11, 77)),
    "layer norm 32x256": ("norm", small._layer_norm, (32, 256)),
    "group norm 12x9x9": ("norm", small._group_norm, (3, 12, 9)),
}
"""Name -> class of operators, what builds it, its sizes."""


@dataclass(frozen=True)
class GpuCase:
    """One program."""

    name: str
    arch: int
    schedule: str
    """``default``, or ``sampled 0`` and so on."""

    @property
    def op_class(self) -> str:
        """The class of its operator."""
        return GPU_KERNELS[self.name][0]


@dataclass(frozen=True)
class GpuProgram:
    """A program with its machine code."""

    program: Program
    source: CudaSource
    machine: Assembled


def programs(arch: int, names: Sequence[str]) -> Iterator[tuple[GpuCase, GpuProgram]]:
    """The compiled programs of operators; those that TVM cannot schedule or compile are left out."""
    target = parse_target(devices.get(DEVICES[arch]).target)
    made: dict[GpuCase, tuple[Program, CudaSource]] = {}
    for name in names:
        for schedule, program in _scheduled(task_of(name), target):
            try:
                made[GpuCase(name, arch, schedule)] = program, cuda_source(program)
            except CdmppError:
                continue
    machine = assembled({str(case): source.text for case, (_, source) in made.items()}, arch, limit_s=300.0)
    for case, (program, source) in made.items():
        if isinstance(one := machine[str(case)], Assembled):
            yield case, GpuProgram(program, source, one)


def task_of(name: str) -> Task:
    """The task of an entry of ``GPU_KERNELS``."""
    import tvm
    from tvm import te

    op_class, build, sizes = GPU_KERNELS[name]
    module = tvm.IRModule({"main": te.create_prim_func(build(*sizes)).with_attr("tirx.noalias", True)})
    return Task(name, name, op_class, module.script(show_meta=True), 0.0, 0.0)


def _scheduled(task: Task, target: Any) -> Iterator[tuple[str, Program]]:
    try:
        yield DEFAULT, default_program(task, target)
    except Exception as error:  # noqa: BLE001 - TVM raises several types; the sampled ones may work
        log.warning("%s has no default schedule: %s", task.op_name, error)
    try:
        for i, program in enumerate(sample_programs(task, target, EACH, 0, mutants=0.0)):
            yield f"{SAMPLED} {i}", program
    except Exception as error:  # noqa: BLE001
        log.warning("%s has no further sampled schedules: %s", task.op_name, error)


def inputs(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Arguments of a task with its result, as TVM computes it for the CPU, unscheduled."""
    import tvm

    from cdmpp.programs.replay import parse_workload

    module = parse_workload(task_of(name).workload)
    generator = np.random.default_rng(0)
    arrays = []
    for parameter in module["main"].params:
        shape, dtype = tuple(int(extent) for extent in parameter.shape), str(parameter.dtype)
        if dtype.startswith("float"):
            low = 0.1 if name.split()[0] in _POSITIVE else -1.0
            arrays.append(generator.uniform(low, 1.0, shape).astype(dtype))
        else:
            arrays.append(np.ones(shape, "bool") if dtype == "bool" else np.zeros(shape, dtype))
    if any(array.dtype == np.int8 for array in arrays):
        arrays = [
            generator.integers(-100, 100, array.shape).astype(array.dtype) if array.dtype == np.int8 else array
            for array in arrays
        ]
    given = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(module, tvm.target.Target("llvm"))["main"](*given)
    return arrays[:-1], given[-1].numpy()


@dataclass(frozen=True)
class Arguments:
    """What the kernels of a program are given, by name."""

    of_program: tuple[str, ...]
    """The last one is the result."""
    of_kernel: dict[str, tuple[str, ...]]
    """Those of each kernel, in order."""
    between: dict[str, np.ndarray]
    """Buffers that one kernel leaves for another."""


def arguments(program: Program) -> Arguments:
    """Which buffers the kernels of a program are given."""
    import tvm
    import tvm_ffi
    from tvm import tirx
    from tvm.tirx.build import split_host_device_mods

    target = tvm.target.Target(program.target).with_host(tvm.target.Target("llvm"))
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        host, by_target = split_host_device_mods(pipeline(tirx.transform.BindTarget(target)(program.module)))
    between: dict[str, np.ndarray] = {}

    def note(statement: Any) -> None:
        buffer = statement.buffer
        name, shape = str(buffer.name), tuple(int(extent) for extent in buffer.shape)
        if name in between:
            raise ValueError(f"two buffers are called {name}")
        between[name] = np.zeros(shape, str(buffer.dtype))

    for function in host.functions.values():
        tvm_ffi.structural_walk(function.body, [(tirx.AllocBuffer, note)], order="pre")
    return Arguments(
        tuple(str(parameter.name) for parameter in program.module["main"].params),
        {
            str(function.attrs["global_symbol"]): tuple(str(p.name).removesuffix("_ptr") for p in function.params)
            for module in by_target.values()
            for function in module.functions.values()
        },
        between,
    )
