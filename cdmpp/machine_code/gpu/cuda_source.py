"""Scheduled program -> CUDA source of its kernels, and how they are launched. Needs TVM, no GPU and no compiler."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.programs.task import Program

_TAGS = tuple(f"{what}.{axis}" for what in ("blockIdx", "threadIdx") for axis in "xyz")


class CudaSource(NamedTuple):
    """These are the kernels of one program."""

    text: str
    launches: dict[str, Launch]
    """Launches by the kernel's name, in the order in which they run."""


def cuda_source(program: Program) -> CudaSource:
    """Generate the CUDA that TVM makes of a program, without its host code; it takes 20 to 400 ms.

    Without TVM's common subexpressions: its last pass puts them back where they came from, and leaves a variable each
    that nothing reads. The machine code is the same, a tenth sooner.

    Raises:
        UnsupportedProgramError: TVM cannot lower it or print CUDA for it, as happens to one program in a hundred.
    """
    from tvm.tirx.build import codegen_build, split_host_device_mods

    target = tvm.target.Target(program.target).with_host(tvm.target.Target("llvm"))
    try:
        bound = tirx.transform.BindTarget(target)(program.module)
        pipeline, _, finalize = tirx.get_tir_pipeline("default")
        with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
            _, by_target = split_host_device_mods(pipeline(bound))
        devices = {one: finalize()(module) for one, module in by_target.items()}
        parts = [(module, codegen_build(module, one).inspect_source()) for one, module in devices.items()]
    except Exception as error:  # noqa: BLE001 - TVM's checks raise whatever they like
        reason = [type(error).__name__, *str(error).strip().splitlines()][-1]
        raise UnsupportedProgramError(f"TVM makes no CUDA of the program: {reason[:300]}") from error
    if len(parts) != 1:
        raise UnsupportedProgramError(f"TVM makes no CUDA of the program: it has kernels for {len(parts)} targets")
    ((module, text),) = parts
    launches = {str(f.attrs["global_symbol"]): _launch(f) for f in module.functions.values()}
    return CudaSource(text, dict(sorted(launches.items(), key=lambda one: _place(one[0]))))


def _launch(function: Any) -> Launch:
    extents = dict.fromkeys(_TAGS, 1)

    def note(statement: Any) -> None:
        if statement.attr_key == "thread_extent" and (tag := str(statement.node.thread_tag)) in extents:
            extents[tag] = int(statement.value)

    dynamic_bytes: list[int] = []

    def note_dynamic(statement: Any) -> None:
        buffer = statement.buffer
        if buffer.scope() == "shared.dyn":
            bits = tvm.runtime.DataType(str(buffer.dtype)).bits
            dynamic_bytes.append(math.prod(int(extent) for extent in buffer.shape) * bits // 8)

    tvm_ffi.structural_walk(function.body, [(tirx.AttrStmt, note), (tirx.AllocBuffer, note_dynamic)], order="pre")
    numbers = [extents[tag] for tag in _TAGS]
    return Launch((numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5]), sum(dynamic_bytes))


def _place(name: str) -> int:
    """TVM calls them ``main_kernel``, ``main_kernel_1`` and so on."""
    last = name.rpartition("_")[2]
    return int(last) if last.isdigit() else 0
