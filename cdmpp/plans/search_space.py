"""SearchSpace: what may be set in a job, next to the settings of its parallel strategy."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.steps.step_graph import StepGraph


@dataclass(frozen=True)
class SearchSpace:
    """These settings of a job may be changed."""

    graph: StepGraph
    """The step, from which a strategy sees which of its settings matter."""
    modules: tuple[str, ...] = ()
    """Names of the modules that may be recomputed, in the order of the model."""
    can_fuse_update: bool = False
    """True if there are several updates, with pauses of the host between them, that one kernel can replace."""
    can_accumulate: bool = False
    """True if gradients of several batches can be added up."""
