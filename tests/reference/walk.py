"""Lowered PrimFunc -> loop nests: every store with its loops, guards and place in the pre-order walk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from tests.reference.expression import call_name, is_constant, kind_of
from tests.reference.loop_nest import (
    Allocation,
    Kernel,
    Kind,
    Leaf,
    Loop,
    Scope,
    Tag,
    Tree,
    element_bytes,
    elements,
    integer,
    scope_of,
    thread_tag,
)

UNROLL_MAX_DEPTH = 8
"""TVM's UnrollLoop stops nesting automatic unrolling here."""
_NO_CODE = ("AllocBuffer", "DeclBuffer", "Bind", "AssertStmt")
_THREADS = ("thread_extent", "virtual_thread")


def walk(function: Any) -> Tree:
    """All leaves of a lowered PrimFunc; ``UnsupportedProgramError`` for symbolic shapes or extents and while loops."""
    for parameter in function.params:
        if hasattr(parameter, "shape"):
            elements(parameter)
    walker = _Walker()
    walker.top_level(function.body)
    return walker.tree


class _Code(NamedTuple):
    """Size of a statement, the way TVM's UnrollLoop counts it: ``depth`` is that of loops that stay loops."""

    steps: int = 0
    depth: int = 0
    unrolled: int = 0


def _in_turn(codes: Iterable[_Code]) -> _Code:
    steps, depths, unrolled = zip(_Code(), *codes, strict=True)
    return _Code(sum(steps), max(depths), max(unrolled))


class _Walker:
    """One depth-first pass. Nodes are loops, attributes, branches and stores; node 0 is the root."""

    def __init__(self) -> None:
        self.outside = self.kernel = Kernel()
        self.tree = Tree([], [], self.outside.allocations)
        self.next_id = 1
        self.serial_length = 1
        self.loops: list[Loop] = []
        self.guards: list[tuple[Any, bool]] = []
        self.unroll_limit = 0
        self.explicit = False

    def top_level(self, node: Any) -> None:
        """A program's kernels are its top-level loop nests: launches on a GPU, passes over memory on a CPU."""
        kind = kind_of(node)
        if kind == "SBlockRealize":
            self.top_level(node.block)
        elif kind == "SBlock":
            self.allocate(*node.alloc_buffers)
            self.top_level(node.body)
        elif kind == "SeqStmt":
            for child in node.seq:
                self.top_level(child)
        elif kind == "AllocBuffer":
            self.allocate(node.buffer)
        elif kind == "AttrStmt" and not str(node.attr_key).startswith(("pragma_", *_THREADS)):
            self.top_level(node.body)
        elif kind != "DeclBuffer":
            before = len(self.tree.leaves)
            self.kernel = Kernel()
            self.tree.kernels.append(self.kernel)
            self.kernel.code_steps = self.visit(node).steps
            if len(self.tree.leaves) == before:
                self.tree.kernels.pop()
            self.kernel = self.outside

    def allocate(self, *buffers: Any) -> None:
        for buffer in buffers:
            scope, copies = scope_of(buffer), 1
            if scope == Scope.SHARED:
                copies = max([1, *(loop.stages for loop in self.loops)])
            elif scope == Scope.LOCAL:  # every virtual thread of a thread keeps its own registers
                copies = math.prod(loop.extent for loop in self.loops if loop.tag == Tag.VTHREAD)
            count = elements(buffer) * copies
            self.kernel.allocations.append(Allocation(scope, count, int(count * element_bytes(buffer))))

    @contextmanager
    def node(self, annotations: dict[str, Any] | None = None) -> Iterator[None]:
        """Inside a node of the tree, whose pragmas hold until it ends."""
        self.next_id += 1
        self.serial_length += 1
        before = self.unroll_limit, self.explicit
        annotations = annotations or {}
        if "pragma_auto_unroll_max_step" in annotations:
            self.unroll_limit = max(0, int(annotations["pragma_auto_unroll_max_step"]))
            self.kernel.unroll_limit = max(self.kernel.unroll_limit, self.unroll_limit)
        if "pragma_unroll_explicit" in annotations:
            self.explicit = bool(int(annotations["pragma_unroll_explicit"]))
        yield
        self.unroll_limit, self.explicit = before
        self.serial_length += 1

    def visit(self, node: Any) -> _Code:
        kind = kind_of(node)
        if kind in ("AllocBuffer", "SBlock"):
            self.allocate(*([node.buffer] if kind == "AllocBuffer" else node.alloc_buffers))
        if kind in _NO_CODE:
            return _Code()
        if kind == "SeqStmt":
            return _in_turn([self.visit(child) for child in node.seq])
        if kind == "SBlockRealize":
            guarded = kind_of(node.predicate) != "IntImm"
            return self.branch(node.predicate, node.block) if guarded else self.visit(node.block)
        if kind in _VISITORS:
            return _VISITORS[kind](self, node)
        if kind == "While":
            raise UnsupportedProgramError("the program holds a while loop: its trip count, and so latency, is unknown")
        if (body := getattr(node, "body", None)) is None:
            raise UnsupportedProgramError(f"the program holds a {kind} statement, which the extractor does not know")
        return self.visit(body)

    def branch(self, condition: Any, *arms: Any) -> _Code:
        """``arms``: what runs where the condition holds, and where it fails."""
        codes = []
        with self.node():
            for positive, arm in zip((True, False), arms, strict=False):
                if arm is not None:
                    self.guards.append((condition, positive))
                    codes.append(self.visit(arm))
                    self.guards.pop()
        return _in_turn(codes)

    def visit_store(self, node: Any) -> _Code:
        handle, constant = node.buffer.__chandle__(), is_constant(node.value)
        for loop in self.loops:
            loop.written.add(handle)
            if constant:
                loop.started.add(handle)
        ramps = [index for index in node.indices if kind_of(index) == "Ramp"]
        lanes = max([1, *(integer(ramp.lanes, "a vector width") for ramp in ramps)])
        place = (self.next_id, self.serial_length, len(self.tree.kernels) - 1)
        leaf = Leaf(node, list(self.loops), list(self.guards), *place, self.unroll_limit, self.explicit, lanes)
        self.tree.leaves.append(leaf)
        with self.node():
            return _Code(1)

    def visit_evaluate(self, node: Any) -> _Code:
        if kind_of(node.value) == "Call" and call_name(node.value) == "tvm_thread_allreduce":
            trips = math.prod(loop.extent for loop in self.loops if loop.tag == Tag.NONE)
            self.kernel.cross_thread_reductions += trips
        return _Code(1)

    def visit_attribute(self, node: Any) -> _Code:
        key = str(node.attr_key)
        if key in _THREADS:
            extent = integer(node.value, "a thread extent")
            tag, axis = thread_tag(str(node.node.thread_tag))
            return self.in_loop(Loop(node.node.var.__chandle__(), 0, extent, Kind.THREAD, tag, axis), node.body, {})
        with self.node({key: node.value}):
            return self.visit(node.body)

    def visit_for(self, node: Any) -> _Code:
        extent = integer(node.extent, f"the extent of loop {node.loop_var.name}")
        start = int(node.min.value) if kind_of(node.min) == "IntImm" else 0
        loop = Loop(node.loop_var.__chandle__(), start, extent, int(node.kind))
        if loop.kind == Kind.THREAD:
            loop.tag, loop.axis = thread_tag(str(node.thread_binding.thread_tag))
        annotations = {str(key): value for key, value in node.annotations.items()}
        if stages := [int(stage) for stage in annotations.get("software_pipeline_stage") or ()]:
            loop.stages = max(stages) - min(stages) + 1
            self.kernel.stages = max(self.kernel.stages, loop.stages)
        return self.in_loop(loop, node.body, annotations)

    def in_loop(self, loop: Loop, body: Any, annotations: dict[str, Any]) -> _Code:
        if loop.extent <= 0:
            return _Code()
        inner = body
        while (kind := kind_of(inner)) in ("SBlockRealize", "SBlock", "AttrStmt"):
            inner = inner.block if kind == "SBlockRealize" else inner.body
        loop.branches = kind == "SeqStmt" and sum(kind_of(part) not in _NO_CODE for part in inner.seq) > 1
        with self.node(annotations):
            self.loops.append(loop)
            steps, depth, unrolled = self.visit(body)
            self.loops.pop()
            fits = loop.extent * steps <= self.unroll_limit
            asked = loop.kind == Kind.SERIAL and depth == 0 and unrolled <= UNROLL_MAX_DEPTH and fits
        if loop.kind == Kind.VECTORIZED:
            loop.unrolled = True
        elif loop.kind == Kind.UNROLLED or asked:
            loop.unrolled = True
            steps, unrolled = steps * loop.extent, unrolled + 1
        elif loop.tag == Tag.NONE:
            depth += 1
        elif loop.tag == Tag.VTHREAD:
            steps *= loop.extent
        return _Code(steps, depth, unrolled)


_VISITORS: dict[str, Callable[[_Walker, Any], _Code]] = {
    "For": _Walker.visit_for,
    "IfThenElse": lambda walker, node: walker.branch(node.condition, node.then_case, node.else_case),
    "AttrStmt": _Walker.visit_attribute,
    "BufferStore": _Walker.visit_store,
    "Evaluate": _Walker.visit_evaluate,
}
