"""Kinds of ops by which the activations of a rank are told apart."""

from __future__ import annotations

from cdmpp.plans.cut_places import CutPlaces, operator_of
from cdmpp.steps.step_graph import HOST_COPY, RankGraph

LOGITS = "logits and loss"
"""The output of the model, what the loss makes of it, and the gradients of both."""
GRADIENTS = "gradients of activations"
PARAMETERS = "gradients of parameters"
RETURNED = "back from the host"


def kinds_of(rank: RankGraph) -> tuple[str, ...]:
    """Return the kind of each op: its operator, ``LOGITS``, or of the backward pass ``GRADIENTS``."""
    on = CutPlaces(rank) if _knows_owners(rank) else None
    output = min(on.outputs, default=len(rank.ops)) if on is not None else len(rank.ops)
    owners = on.owners if on is not None else (None,) * len(rank.ops)
    found = list[str]()
    for place, (op, owner) in enumerate(zip(rank.ops, owners, strict=True)):
        if op.kind == HOST_COPY:
            found.append(RETURNED)
        elif (op.phase == "forward" and place >= output) or (op.phase == "backward" and (owner or 0) > output):
            found.append(LOGITS)
        elif op.phase == "backward" and not op.is_recomputed:
            found.append(GRADIENTS)
        else:
            found.append(operator_of(op))
    return tuple(found)


def _knows_owners(rank: RankGraph) -> bool:
    """Return True if it is known which op of the forward pass each one of the backward pass belongs to."""
    return not any(op.phase == "backward" and op.forward is None and not op.inputs for op in rank.ops)
