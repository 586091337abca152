"""Lowered PrimFunc -> loop nests: every store with its loops, guards and place in the pre-order walk."""

from __future__ import annotations

from typing import Any

from cdmpp.ast.expression import call_name, is_constant, kind_of
from cdmpp.ast.loop_nest import (
    LOCAL,
    NO_TAG,
    SERIAL,
    SHARED,
    THREAD,
    UNROLLED,
    VECTORIZED,
    VTHREAD_TAG,
    Allocation,
    Kernel,
    Leaf,
    Loop,
    Tree,
    element_bytes,
    elements,
    integer,
    scope_of,
    thread_tag,
)
from cdmpp.errors import UnsupportedProgramError

UNROLL_MAX_DEPTH = 8
"""TVM's UnrollLoop stops nesting automatic unrolling here."""


class Walker:
    """One depth-first pass. Nodes are loops, attributes, branches and stores; node 0 is the root."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.kernels: list[Kernel] = []
        self.function_allocations: list[Allocation] = []
        self.next_id = 1
        self.serial_length = 1
        self.loops: list[Loop] = []
        self.guards: list[tuple[Any, bool]] = []
        self.unroll_limit = 0
        self.explicit = False
        self.kernel: Kernel | None = None

    def run(self, function: Any) -> Tree:
        for parameter in function.params:
            if hasattr(parameter, "shape"):
                elements(parameter)
        self.top_level(function.body)
        kernels = self.kernels
        return Tree(self.leaves, kernels, self.function_allocations)

    # A program's kernels are its top-level loop nests: launches on a GPU, passes over memory on a CPU.
    def top_level(self, node: Any) -> None:
        kind = kind_of(node)
        if kind == "SBlockRealize":
            self.top_level(node.block)
        elif kind == "SBlock":
            for buffer in node.alloc_buffers:
                self.allocate(buffer)
            self.top_level(node.body)
        elif kind == "SeqStmt":
            for child in node.seq:
                self.top_level(child)
        elif kind in ("AllocBuffer", "DeclBuffer"):
            if kind == "AllocBuffer":
                self.allocate(node.buffer)
        elif kind == "AttrStmt" and str(node.attr_key) not in ("thread_extent", "virtual_thread"):
            if str(node.attr_key).startswith("pragma_"):
                self.nest(node)
            else:
                self.top_level(node.body)
        else:
            self.nest(node)

    def nest(self, node: Any) -> None:
        self.kernel = Kernel()
        self.kernels.append(self.kernel)
        before = len(self.leaves)
        steps, _, _ = self.visit(node)
        self.kernel.code_steps = steps
        if len(self.leaves) == before:
            self.kernels.pop()
        self.kernel = None

    def allocate(self, buffer: Any) -> None:
        scope, count = scope_of(buffer), elements(buffer)
        copies = 1
        for loop in self.loops:
            if scope == SHARED:
                copies = max(copies, loop.stages)
            elif scope == LOCAL and loop.tag == VTHREAD_TAG:
                copies *= loop.extent  # every virtual thread of a thread keeps its own registers
        allocation = Allocation(scope, count * copies, int(count * copies * element_bytes(buffer)))
        (self.function_allocations if self.kernel is None else self.kernel.allocations).append(allocation)

    def enter(self) -> int:
        node_id = self.next_id
        self.next_id += 1
        self.serial_length += 1
        return node_id

    def leave(self) -> None:
        self.serial_length += 1

    def visit(self, node: Any) -> tuple[int, int, int]:
        """(steps, normal loop depth, unroll depth) the way TVM's UnrollLoop counts them."""
        visitor = _VISITORS.get(kind_of(node))
        if visitor is not None:
            return visitor(self, node)
        body = getattr(node, "body", None)
        if body is None:
            raise UnsupportedProgramError(
                f"the program holds a {kind_of(node)} statement, which the extractor does not know"
            )
        return self.visit(body)

    def visit_sequence(self, node: Any) -> tuple[int, int, int]:
        total = (0, 0, 0)
        for child in node.seq:
            found = self.visit(child)
            total = (total[0] + found[0], max(total[1], found[1]), max(total[2], found[2]))
        return total

    def visit_realize(self, node: Any) -> tuple[int, int, int]:
        if kind_of(node.predicate) == "IntImm":
            return self.visit(node.block)
        return self.branch([(node.predicate, True, node.block)])

    def visit_block(self, node: Any) -> tuple[int, int, int]:
        for buffer in node.alloc_buffers:
            self.allocate(buffer)
        return self.visit(node.body)

    def visit_branch(self, node: Any) -> tuple[int, int, int]:
        arms = [(node.condition, True, node.then_case)]
        if node.else_case is not None:
            arms.append((node.condition, False, node.else_case))
        return self.branch(arms)

    def visit_store(self, node: Any) -> tuple[int, int, int]:
        position = self.enter()
        serial = self.serial_length - 1
        self.leave()
        for loop in self.loops:
            loop.written.add(node.buffer.__chandle__())
            if is_constant(node.value):
                loop.started.add(node.buffer.__chandle__())
        lanes = 1
        for index in node.indices:
            if kind_of(index) == "Ramp":
                lanes = max(lanes, integer(index.lanes, "a vector width"))
        kernel = len(self.kernels) - 1
        loops, guards = list(self.loops), list(self.guards)
        leaf = Leaf(node, loops, guards, position, serial, kernel, self.unroll_limit, self.explicit)
        leaf.lanes = lanes
        self.leaves.append(leaf)
        return 1, 0, 0

    def visit_evaluate(self, node: Any) -> tuple[int, int, int]:
        if kind_of(node.value) == "Call" and call_name(node.value) == "tvm_thread_allreduce" and self.kernel:
            trips = 1.0
            for loop in self.loops:
                if loop.tag == NO_TAG:
                    trips *= loop.extent
            self.kernel.cross_thread_reductions += trips
        return 1, 0, 0

    def visit_allocation(self, node: Any) -> tuple[int, int, int]:
        self.allocate(node.buffer)
        return 0, 0, 0

    def visit_nothing(self, node: Any) -> tuple[int, int, int]:
        return 0, 0, 0

    def visit_while(self, node: Any) -> tuple[int, int, int]:
        raise UnsupportedProgramError("the program holds a while loop: its trip count, and so its latency, is unknown")

    def branch(self, arms: list[tuple[Any, bool, Any]]) -> tuple[int, int, int]:
        self.enter()
        total = (0, 0, 0)
        for condition, positive, body in arms:
            self.guards.append((condition, positive))
            found = self.visit(body)
            total = (total[0] + found[0], max(total[1], found[1]), max(total[2], found[2]))
            self.guards.pop()
        self.leave()
        return total

    def visit_attribute(self, node: Any) -> tuple[int, int, int]:
        key = str(node.attr_key)
        if key in ("thread_extent", "virtual_thread"):
            extent = integer(node.value, "a thread extent")
            tag, axis = thread_tag(str(node.node.thread_tag))
            return self.in_loop(Loop(node.node.var.__chandle__(), 0, extent, THREAD, tag, axis), node.body, {})
        annotations = {key: node.value} if key.startswith("pragma_") else {}
        self.enter()
        saved = self.unroll_limit, self.explicit
        self.pragma(annotations)
        found = self.visit(node.body)
        self.unroll_limit, self.explicit = saved
        self.leave()
        return found

    def pragma(self, annotations: dict[str, Any]) -> None:
        if "pragma_auto_unroll_max_step" in annotations:
            self.unroll_limit = max(0, int(annotations["pragma_auto_unroll_max_step"]))
            if self.kernel:
                self.kernel.unroll_limit = max(self.kernel.unroll_limit, self.unroll_limit)
        if "pragma_unroll_explicit" in annotations:
            self.explicit = bool(int(annotations["pragma_unroll_explicit"]))

    def visit_for(self, node: Any) -> tuple[int, int, int]:
        kind = int(node.kind)
        extent = integer(node.extent, f"the extent of loop {node.loop_var.name}")
        tag, axis = NO_TAG, 0
        if kind == THREAD:
            tag, axis = thread_tag(str(node.thread_binding.thread_tag))
        annotations = {str(k): v for k, v in node.annotations.items()}
        start = node.min
        loop = Loop(
            node.loop_var.__chandle__(), int(start.value) if kind_of(start) == "IntImm" else 0, extent, kind, tag, axis
        )
        stages = annotations.get("software_pipeline_stage")
        if stages is not None and len(stages):
            numbers = [int(s) for s in stages]
            loop.stages = max(numbers) - min(numbers) + 1
            if self.kernel:
                self.kernel.stages = max(self.kernel.stages, loop.stages)
        return self.in_loop(loop, node.body, annotations)

    def in_loop(self, loop: Loop, body: Any, annotations: dict[str, Any]) -> tuple[int, int, int]:
        if loop.extent <= 0:
            return 0, 0, 0
        self.enter()
        saved = self.unroll_limit, self.explicit
        self.pragma(annotations)
        inner = body
        while kind_of(inner) in ("SBlockRealize", "SBlock", "AttrStmt"):
            inner = inner.block if kind_of(inner) == "SBlockRealize" else inner.body
        loop.branches = kind_of(inner) == "SeqStmt" and sum(holds_statement(s) for s in inner.seq) > 1
        self.loops.append(loop)
        steps, normal, unrolled = self.visit(body)
        self.loops.pop()
        if loop.kind == VECTORIZED:
            loop.unrolled = True
        elif loop.kind == UNROLLED or (
            loop.kind == SERIAL
            and normal == 0
            and unrolled <= UNROLL_MAX_DEPTH
            and loop.extent * steps <= self.unroll_limit
        ):
            loop.unrolled = True
            steps, unrolled = steps * loop.extent, unrolled + 1
        elif loop.tag == NO_TAG:
            normal += 1
        elif loop.tag == VTHREAD_TAG:
            steps *= loop.extent
        self.unroll_limit, self.explicit = saved
        self.leave()
        return steps, normal, unrolled


_VISITORS = {
    "For": Walker.visit_for,
    "SeqStmt": Walker.visit_sequence,
    "SBlockRealize": Walker.visit_realize,
    "SBlock": Walker.visit_block,
    "IfThenElse": Walker.visit_branch,
    "AttrStmt": Walker.visit_attribute,
    "BufferStore": Walker.visit_store,
    "Evaluate": Walker.visit_evaluate,
    "AllocBuffer": Walker.visit_allocation,
    "Bind": Walker.visit_nothing,
    "DeclBuffer": Walker.visit_nothing,
    "AssertStmt": Walker.visit_nothing,
    "While": Walker.visit_while,
}


def holds_statement(node: Any) -> bool:
    return kind_of(node) not in ("AllocBuffer", "DeclBuffer", "Bind", "AssertStmt")


def walk(function: Any) -> Tree:
    """All leaves of a lowered PrimFunc.

    Raises:
        UnsupportedProgramError: no store, symbolic shape or extent, while loop.
    """
    tree = Walker().run(function)
    if not tree.leaves:
        raise UnsupportedProgramError(
            "the program has no store: nothing is computed, so there is no latency to predict"
        )
    return tree
