"""Host bytes: what a rank that leaves its parameters on the host holds there, and on its device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cdmpp.steps.step_graph import ModuleSpan
from cdmpp.steps.strategy import RankBytes


def on_device(own: RankBytes, modules: Sequence[ModuleSpan]) -> RankBytes:
    """Return what a rank holds on its device of parameters that lie on the host: what passes, and copies under way.

    Args:
        own: what it would hold under its strategy.
        modules: of the rank; copies of the largest one are there at a time.
    """
    share = max((one.bytes for one in modules), default=0) / (sum(one.bytes for one in modules) or 1)
    return replace(
        own,
        parameter_bytes=0,
        state_bytes=0,
        gradient_bytes=0,
        update_bytes=0,
        gathered_bytes=own.gathered_bytes + math.ceil(share * own.parameter_bytes),
        passing_bytes=own.passing_bytes + math.ceil(share * own.gradient_bytes),
    )


def on_host(own: RankBytes) -> int:
    """Return what a rank that keeps its parameters on the host holds there."""
    return own.parameter_bytes + own.state_bytes + own.gradient_bytes
