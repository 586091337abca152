"""Edit: the ops of a rank put in another order, and all that names their places moved along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph


@dataclass(frozen=True)
class Edit:
    """One rank gets new ops. ``waits`` and ``inputs`` of the ops name new places already."""

    ops: tuple[Op, ...]
    after: Sequence[int]
    """Old place -> the new place after which there happens what happened after the old op."""
    before: Sequence[int]
    """Old place -> the new place of the op that waits for what the old one waited for."""
    backward_begins: Mapping[str, int] = field(default_factory=dict)
    """Module -> new place from which on its parameters must be there, where that is earlier than its backward pass."""
    earlier: tuple[ModuleSpan, ...] = ()
    """Modules at new places that come before those of the old ops."""

    def end(self, place: int) -> int:
        """Return the new place after which there happens what happened after an old ``place``, or the start."""
        return START if place == START else self.after[place]

    def begin(self, place: int) -> int:
        """Return the new place for an old ``place`` that waits; the end of the step stays the end."""
        return self.before[place] if place < len(self.before) else len(self.ops)


def edited(graph: StepGraph, edit_of: Callable[[RankGraph], Edit]) -> StepGraph:
    """Edit the graph rank by rank: gradients, modules and exchanges follow their ops."""
    edits = {rank.rank: edit_of(rank) for rank in graph.ranks}
    return derived(
        graph,
        ranks=tuple(edited_rank(rank, edits[rank.rank]) for rank in graph.ranks),
        exchanges=tuple(moved(one, edits) for one in graph.exchanges),
    )


def moved(exchange: Exchange, edits: Mapping[int, Edit]) -> Exchange:
    """Move the exchange to the places that its ops went to."""
    return derived(
        exchange,
        after={rank: edits[rank].end(place) for rank, place in exchange.after.items()},
        before=_begins(exchange.before, edits),
        blocks=_begins(exchange.blocks, edits) if exchange.blocks else exchange.blocks,
    )


def moved_op(op: Op, places: Mapping[int, int]) -> Op:
    """Give the op new places of the ops that it waits for and reads; those that have none are left out."""
    if not op.inputs and not op.held and not op.waits and op.forward is None:
        return op
    inputs = tuple([places[one] for one in op.inputs if one in places])
    waits, held = (tuple([places[one] for one in own if one in places]) if own else () for own in (op.waits, op.held))
    found = object.__new__(Op)  # as ``derived``, written out: graphs have many
    found.__dict__.update(op.__dict__)
    forward = None if op.forward is None else places.get(op.forward)
    found.__dict__.update({"waits": waits, "inputs": inputs, "held": held, "forward": forward})
    return found


def each_op(graph: StepGraph, change: Callable[[Op], Op]) -> StepGraph:
    """Change each op of the graph at its place."""
    return replace(graph, ranks=tuple(replace(rank, ops=tuple(map(change, rank.ops))) for rank in graph.ranks))


def _begins(places: Mapping[int, Sequence[int]], edits: Mapping[int, Edit]) -> dict[int, tuple[int, ...]]:
    return {rank: tuple(dict.fromkeys([edits[rank].begin(place) for place in own])) for rank, own in places.items()}


def edited_rank(rank: RankGraph, edit: Edit) -> RankGraph:
    """Edit one rank: gradients and modules follow its ops."""
    gradients = tuple(
        derived(one, ready_after=edit.end(one.ready_after), readers=tuple(map(edit.begin, one.readers)))
        for one in rank.gradients
    )
    modules = tuple(
        derived(
            one,
            forward=(edit.begin(one.forward[0]), edit.end(one.forward[1])),
            backward=(edit.backward_begins.get(one.name, edit.begin(one.backward[0])), edit.end(one.backward[1])),
        )
        for one in rank.modules
    )
    return derived(rank, ops=edit.ops, gradients=gradients, modules=(*edit.earlier, *modules))
