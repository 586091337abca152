"""Rounds: all workers train so many batches from the same parameters, and their updates are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.steps.decisions import Decisions, Next


class Rounds(Decisions):
    """A round is over with the first ``needed`` commits; later ones of that round are dropped."""

    has_rounds = True

    def __init__(
        self, workers: int, every: int = 1, needed: int | None = None, scale: float = 1.0, momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        """Begin the first round.

        Args:
            workers: number of workers.
            every: batches that a worker trains before it commits.
            needed: commits that end a round; None: those of all.
            scale: factor of the mean of a round's updates, the learning rate of the servers.
            momentum: of the servers.
            nesterov: the momentum looks ahead.
        """
        super().__init__(workers)
        self.every, self.momentum, self.nesterov = every, momentum, nesterov
        self._needed, self._scale = workers if needed is None else needed, scale
        self._round = 0
        self._accepted = self._added = 0
        """Commits of the present round whose adding has begun; and has ended."""
        self._round_of = [0] * workers
        """The round that each worker trains for."""
        self._batches_of = [every]
        """Round -> the batches that a worker trains in it."""
        self._commits = [0] * workers
        self._left = [every] * workers
        """Batches before each worker commits."""
        self._waiting: list[int] = []
        self._dropped = [False] * workers

    @property
    def gathering(self) -> bool:  # type: ignore[override]
        """The present round has commits already."""
        return self._added > 0

    def after_batch(self, worker: int, now_s: float) -> Next:
        """Commit after ``every`` batches; a change of it holds for all workers from the same round on."""
        self._left[worker] -= 1
        if self._left[worker]:
            return Next.TRAIN
        self._commits[worker] += 1
        if self._commits[worker] == len(self._batches_of):
            self._batches_of.append(self.every)
        self._left[worker] = self._batches_of[self._commits[worker]]
        return Next.COMMIT

    def weight(self, worker: int, now_s: float) -> float:
        """Average the round's updates, and drop what is of an earlier round or beyond those that are needed."""
        self._dropped[worker] = self._round_of[worker] != self._round or self._accepted == self._needed
        if self._dropped[worker]:
            return 0.0
        self._accepted += 1
        return self._scale / self._needed

    def applied(self, worker: int, now_s: float) -> Sequence[int]:
        """Release all who wait once the round is over, and at once a worker that came too late for its own."""
        if self._dropped[worker] and self._round_of[worker] != self._round:
            return self._released([worker])
        self._waiting.append(worker)
        if not self._dropped[worker]:
            self._added += 1
        if self._added < self._needed:
            return ()
        self._round += 1
        self._accepted = self._added = 0
        waiting, self._waiting = self._waiting, []
        return self._released(waiting)

    def _released(self, workers: list[int]) -> list[int]:
        for worker in workers:
            self._round_of[worker] = self._round
        return workers
