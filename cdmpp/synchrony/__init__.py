"""Jobs whose workers commit to servers: when they do so, how fast that is, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.steps.synchrony import Synchrony
    from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace
    from cdmpp.synchrony.processes.record import RunRecord


def run(
    train: Callable[..., Any],
    synchrony: Synchrony,
    workers: Sequence[WorkerPlace],
    servers: Sequence[ServerPlace] | None = None,
    seconds: float = 30.0,
    seed: int = 0,
    point_s: float = 1.0,
) -> RunRecord:
    """Run a real job of workers and servers on this machine, as ``processes.job.run`` says. Needs torch."""
    from cdmpp.synchrony.processes.job import run as start
    from cdmpp.synchrony.processes.place import ServerPlace

    return start(train, synchrony, workers, [ServerPlace()] if servers is None else servers, seconds, seed, point_s)
