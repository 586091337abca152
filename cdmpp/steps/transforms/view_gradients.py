"""View gradients: they lie in their buckets (``gradient_as_bucket_view``), so that nothing is copied back."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.step_graph import COPY, StepGraph
from cdmpp.steps.transforms.edit import each_op


def view_gradients(graph: StepGraph) -> StepGraph:
    """Let copies from buckets take no time. They stay as places where buckets are waited for one after the other."""
    return each_op(graph, lambda op: replace(op, duration_s=0.0, delay_s=0.0) if op.kind == COPY else op)
