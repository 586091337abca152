"""Keep gathered: FSDP modules are not resharded after the forward pass."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.step_graph import StepGraph


def keep_gathered(graph: StepGraph) -> StepGraph:
    """All modules stay gathered from the forward to the backward pass (``reshard_after_forward=False``)."""
    ranks = (replace(rank, modules=tuple(replace(one, is_kept=True) for one in rank.modules)) for rank in graph.ranks)
    return replace(graph, ranks=tuple(ranks))
