"""Decisions: what workers and servers of a running job ask their synchrony. It drives the replay and real processes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Next(Enum):
    """What a worker does after a batch."""

    TRAIN = "train"
    COMMIT = "commit"


class Decisions:
    """The state of one job. As it is, every worker commits after each batch and nobody waits.

    Workers are numbered from 0. Times are seconds since the start of the job and never fall.
    Servers hold the parameters. A worker trains, and commits what its parameters have moved since its last pull: its
    *update*. The servers ask ``weight`` once for each commit, as they begin to add it, gather ``weight x update``, and
    tell ``applied`` once they have all of it. Unless a round is ``gathering`` then, what they gathered moves the
    parameters: ``velocity = momentum x velocity + gathered``; ``parameters += velocity``, or
    ``gathered + momentum x velocity`` with ``nesterov``. A server that is one of several does the same with its part.
    The calls of one job come one after another, never from two threads at once.
    """

    momentum: float = 0.0
    """Momentum of the servers, from 0 to below 1. It may change between two commits."""
    nesterov: bool = False
    """The momentum looks ahead, as Nesterov's does."""
    has_rounds: bool = False
    """Every worker waits for all others after each of its commits, but for some that a kind leaves out."""
    gathering: bool = False
    """Updates of a round are added up and have not moved the parameters yet."""
    check_s: float | None = None
    """Seconds between two looks at the global loss, told to ``observe``; None: it wants none."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        """Number of workers."""

    def after_batch(self, worker: int, now_s: float) -> Next:
        """A worker has ended a batch: return what it does next."""
        return Next.COMMIT

    def ready(self, worker: int, now_s: float) -> Sequence[int]:
        """A worker has an update to push: return the workers that may begin to push now, each of them ready."""
        return (worker,)

    def weight(self, worker: int, now_s: float) -> float:
        """Return the factor of a worker's update as it is added; 0: it comes too late and is dropped."""
        return 1.0

    def applied(self, worker: int, now_s: float) -> Sequence[int]:
        """The servers have the whole commit of a worker: return the workers that may pull now, perhaps none or many."""
        return (worker,)

    def pulled(self, worker: int, now_s: float) -> Sequence[int]:
        """A worker has the new parameters: return the workers that may begin to push now, each of them ready."""
        return ()

    def observe(self, loss: float, now_s: float) -> None:
        """The global loss as it was seen at a check; the first is that of the start, at 0 s."""
