"""Kernel: one launch that Inductor scheduled, with what it reads and writes by Inductor's own count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.network.inductor.library import Attending, library_call
from cdmpp.operators.operator import EagerOperator


@dataclass(frozen=True)
class Kernel:
    """Inductor launches this kernel, or a library does for it."""

    name: str
    reads: tuple[str, ...]
    """Names of the buffers that it reads and others made."""
    writes: tuple[tuple[str, int], ...]
    """(name, bytes) of each buffer that later ones may read; the bytes are those that lie in memory for it."""
    read_bytes: int
    written_bytes: int
    """Bytes that Inductor says it reads and writes; each buffer once, also one that is read and written."""
    moved_bytes: int = 0
    """The same of a fused kernel, of a table only what is looked up in it, which Inductor counts whole."""
    elements: int = 0
    """Results of a fused kernel, before its reductions: it has ``elements * reduction`` points."""
    reduction: int = 1
    """Elements that are reduced to one; 1: none."""
    dtype: str = "float32"
    operators: tuple[EagerOperator, ...] = ()
    """Calls of a library; empty: Inductor's own kernel."""
    stands_for: str = ""
    """Library call that nobody measured: ``operators`` are what it is answered as."""
    launches: bool = True
    """False for what only names a buffer: a part of a result, or the place that others write a concatenation into."""

    @property
    def is_fused(self) -> bool:
        """Return True for a kernel that Inductor writes itself."""
        return self.launches and not self.operators


def kernels_of(graph: Any, attending: Attending) -> tuple[Kernel, ...]:
    """List the kernels of a scheduled ``GraphLowering``, in the order in which they are launched."""
    return tuple(_kernel(graph, node, attending) for node in graph.scheduler.nodes)


def _kernel(graph: Any, node: Any, attending: Attending) -> Kernel:
    from torch._inductor import ir
    from torch._inductor.dependencies import WeakDep
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    outputs = list(node.get_outputs())
    own = {one.get_name() for one in outputs}
    names = (dep.name for dep in node.read_writes.reads if not isinstance(dep, WeakDep))
    reads = tuple(name for name in dict.fromkeys(names) if name not in own)
    inside = {part.get_name() for part in node.get_nodes()}
    kept = [one for one in outputs if _is_kept(graph, one, inside)]
    writes = tuple((one.get_name(), _bytes(graph, one.node)) for one in kept)
    name = node.get_name()
    if isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput):
        return Kernel(name, reads, writes, 0, 0, launches=False)
    written = node.get_write_buffer_sizes()
    moved = node.get_read_write_buffers_sizes() - written, written
    if isinstance(node, ExternKernelSchedulerNode):
        found = library_call(node.node, sum(moved), attending)
        return Kernel(name, reads, writes, *moved, operators=found.operators, stands_for=found.stands_for)
    points = [_points(graph, part) for part in node.get_nodes()]
    elements, reduction = max(points, key=lambda one: (one[0] * one[1], one[1]))
    most = sum(_touched_bytes(graph, node, elements * reduction, written) for written in (False, True))
    return Kernel(name, reads, writes, *moved, most, elements, reduction, _dtype([one.node for one in kept or outputs]))


def _touched_bytes(graph: Any, node: Any, points: int, written: bool) -> int:
    """Bytes that a kernel reads, or writes: of each buffer as many elements as it accesses."""
    from torch._inductor.dependencies import MemoryDep

    hint = graph.sizevars.optimization_hint
    most: dict[str, int] = {}
    for dep in node.read_writes.writes if written else node.read_writes.reads:
        direct = isinstance(dep, MemoryDep) and not dep.is_indirect()
        touched = hint(dep.get_numel(), fallback=points) if direct else points
        most[dep.name] = most.get(dep.name, 0) + touched
    found = 0
    sizes = node.get_read_write_buffer_accesses(include_reads=not written, include_writes=written)
    for name, size in sizes.items():
        found += min(size, most[name] * graph.get_dtype(name).itemsize)
    return found


def _is_kept(graph: Any, output: Any, inside: set[str]) -> bool:
    """Return True if a buffer is written to memory: something outside its kernel reads it."""
    if output.get_name() in graph.get_output_names():
        return True
    return any(user.node.get_name() not in inside or user.is_weak for user in output.users)


def _points(graph: Any, node: Any) -> tuple[int, int]:
    if not hasattr(node, "group"):
        return 1, 1
    elements, reduction = node.group[1][:2] if len(node.group[1]) > 1 else (node.group[1][0], 1)
    if hasattr(elements, "__len__"):  # ranges, not their products
        return 1, 1
    hint = graph.sizevars.optimization_hint
    return hint(elements, fallback=1), hint(reduction, fallback=1)


def _bytes(graph: Any, buffer: Any) -> int:
    from torch._inductor import ir

    layout = buffer.maybe_get_layout()
    if not isinstance(layout, ir.FixedLayout | ir.FlexibleLayout):
        return 0  # none, a part of another, or one that it overwrites
    return int(graph.sizevars.optimization_hint(buffer.get_numel(), fallback=1)) * layout.dtype.itemsize


def _dtype(buffers: Sequence[Any]) -> str:
    """Type of the widest float that is written; whole numbers and truth count as floats of as many bytes."""
    layouts = [layout for one in buffers if (layout := one.maybe_get_layout()) is not None and hasattr(layout, "dtype")]
    floats = sorted({one.dtype for one in layouts if one.dtype.is_floating_point}, key=lambda one: -one.itemsize)
    name = str(floats[0]).removeprefix("torch.") if floats else "float32"
    return name if name in ("float32", "float16", "bfloat16", "float64") else "float32"
