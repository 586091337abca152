"""Host update: what an optimizer on the processors of a node reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.errors import CdmppError
from cdmpp.network.update import NONE, Update

_STATES: Mapping[str, int] = {"sgd": 1, "adam": 2, "adamw": 2}
"""Optimizer -> tensors that it keeps for a parameter."""
PASSES: Mapping[tuple[str, str], int] = {
    ("sgd", "for-loop"): 8, ("adam", "for-loop"): 18, ("adamw", "for-loop"): 20,
    ("sgd", "fused"): 5, ("adam", "fused"): 7, ("adamw", "fused"): 7,
}  # fmt: skip
"""Optimizer and implementation -> tensors of the size of a parameter that its calls read and write, each counted as
often: AdamW multiplies the parameter (2), moves the first moment (3) and the second (2 + 3), makes the root, its
quotient and the sum with epsilon (2 each), and adds to the parameter (4). None stays in a cache between two calls."""


def traffic_bytes(update: Update, state_bytes: float, is_fused: bool) -> float:
    """Return the bytes that an update reads and writes.

    Args:
        update: of all parameters.
        state_bytes: of what it keeps for the parameters of a rank.
        is_fused: True where the plan fuses it.

    Raises:
        CdmppError: an update that is not known on a host.
    """
    if update.optimizer == NONE:
        return 0.0
    implementation = "fused" if is_fused else update.implementation or "for-loop"
    if (update.optimizer, implementation) not in PASSES or update.ema or update.clip_norm is not None:
        known = ", ".join(f"{one}-fused" if how == "fused" else one for one, how in PASSES)
        raise CdmppError(
            f"plan.offload names parameters, and the host would update them by {update}: known there are {known}, "
            "without clipping and averages"
        )
    return PASSES[update.optimizer, implementation] * state_bytes / _STATES[update.optimizer]
