"""Events of one thread as a tree, and the leaves at which its time is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cdmpp.trace.event import Event
from cdmpp.trace.exchange_events import is_launch

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ENGINE = "autograd::engine::evaluate_function"


@dataclass
class Node:
    """A node is an event and those inside it."""

    event: Event
    children: list[Node] = field(default_factory=list)
    events: int = 1
    opened: bool = False
    """Cut at its children: it holds a mark, an exchange or a gradient, so its own time is no single operator's."""


@dataclass
class Leaf:
    """A leaf is a stretch of a thread that is one op."""

    event: Event
    start: float
    """Microseconds, as in the trace."""
    end: float
    events: int
    phase: str
    """Empty where only its place among the others tells."""
    gradient: Event | None = None
    """The parameter that is ready after it."""
    hook: bool = False
    """It runs where a gradient was accumulated: what it launches nobody waits for there."""

    @property
    def launches(self) -> bool:
        """Return True if it hands over an exchange."""
        return is_launch(self.event)


def leaves(events: list[Event]) -> list[Leaf]:
    """List leaves of one thread, by start; what lies between two of them is no operator's."""
    found: list[Leaf] = []
    for root in _roots(events):
        found += _cut(root, "")
    return found


def _roots(events: list[Event]) -> list[Node]:
    roots: list[Node] = []
    stack: list[Node] = []
    made: list[tuple[Node, Node | None]] = []
    for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
        while stack and stack[-1].event.end <= event.ts:
            stack.pop()
        node, parent = Node(event), stack[-1] if stack else None
        (parent.children if parent else roots).append(node)
        made.append((node, parent))
        stack.append(node)
    for node, parent in reversed(made):
        node.opened = node.opened or node.event.category != "cpu_op"
        if is_launch(node.event):
            node.opened = False
        if parent is not None:
            parent.events += node.events
            parent.opened = parent.opened or node.opened or is_launch(node.event) or node.event.name == _ACCUMULATE
    return roots


def _cut(node: Node, phase: str) -> Iterator[Leaf]:
    name, start = node.event.name, node.event.ts
    if name.startswith(_ENGINE):
        phase = "backward"
    elif name.startswith("Optimizer.step"):
        phase = "update"
    if not node.opened:
        yield Leaf(node.event, start, start + node.event.dur, node.events, phase)
        return
    inside = [leaf for child in node.children for leaf in _cut(child, phase)]
    if name.startswith(_ENGINE) and (grads := [n.event for n in node.children if n.event.name == _ACCUMULATE]):
        first = next((place for place, leaf in enumerate(inside) if leaf.launches), len(inside))
        inside[max(first - 1, 0)].gradient = grads[0]
        for leaf in inside:
            leaf.hook = True
    yield from inside
