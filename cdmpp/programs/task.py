"""Task and Program: what is predicted, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VARIANT_MARK = "@"
"""Between the name of a network and that of its variant."""


def network_family(name: str) -> str:
    """Return the network that ``name`` is a variant of (batch, size or length): ``resnet50`` of ``resnet50@b4``."""
    return name.partition(VARIANT_MARK)[0]


def trains(name: str) -> bool:
    """Return True if ``name`` is a variant that trains, such as ``resnet50@train``: its tasks are a training step's."""
    return name.partition(VARIANT_MARK)[2].startswith("train")


@dataclass(frozen=True)
class Task:
    """A task is an unscheduled tensor program: the thing that many schedules implement."""

    task_id: str
    """Structural hash of the unscheduled PrimFunc, 16 hex digits; equal for equal computations."""
    op_name: str
    """Name given by the network importer, e.g. ``fused_conv2d_add_relu``."""
    op_class: str
    """Coarse class used in reports: conv2d, winograd, depthwise, dense, matmul, softmax, norm, pool, reduce,
    elementwise or other."""
    workload: str
    """TVMScript text of the IRModule; ``tvm.script.from_source`` restores it."""
    flops: float
    """Arithmetic operations of one execution."""
    io_bytes: float
    """Bytes of all inputs and outputs, each counted once."""
    networks: dict[str, int] = field(default_factory=dict)
    """Network name -> number of call sites (weight)."""
    origin: str = ""
    """Source of the task: ``torch``, ``onnx``, ``metaschedule:<folder>`` ..."""


@dataclass(frozen=True)
class Program:
    """This is one scheduled, lowerable tensor program. ``module`` and ``target`` are TVM objects."""

    module: Any
    """``tvm.IRModule`` with one PrimFunc ``main``, scheduled (SBlock form) or lowered."""
    target: Any
    """``tvm.target.Target`` the program is meant for."""
    task_id: str = ""
    trace: str = ""
    """JSON of the MetaSchedule trace (instructions, decisions); empty where unknown."""
    name: str = ""
