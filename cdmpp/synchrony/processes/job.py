"""``run``: a real small job of workers and parameter servers on this machine, under a synchrony."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError, UsageError
from cdmpp.platform.limits import SEED, checked, numbers
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.outcome import ServerShare, WorkerShare
from cdmpp.synchrony.processes import namespaces
from cdmpp.synchrony.processes.coordinator import Coordinator, Ledger, Pipes
from cdmpp.synchrony.processes.crew import START_LIMIT_S, Crew, check_sendable, limits
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace, check_places
from cdmpp.synchrony.processes.record import LossPoint, RunRecord, ServerRecord, WorkerRecord
from cdmpp.synchrony.processes.server import serve
from cdmpp.synchrony.processes.training import TrainFunction
from cdmpp.synchrony.processes.wire import tell
from cdmpp.synchrony.processes.worker import WARM_UP, evaluate, work

_FLOAT_BYTES = 4
_LEAST_START_S = 60.0
"""Seconds for imports of a worker on a busy machine; its first batches may take as long as the job beyond that."""


@checked(seconds=numbers(0, 1e6, "seconds", above=True), seed=SEED, point_s=numbers(0.01, 1e6, "seconds"))
def run(
    train: Callable[..., Any],
    synchrony: Synchrony,
    workers: Sequence[Any],
    servers: Sequence[Any] = (ServerPlace(),),
    seconds: float = 30.0,
    seed: int = 0,
    point_s: float = 1.0,
) -> RunRecord:
    """Train for ``seconds`` with real processes over real sockets, and return what each of them did.

    Call it below ``if __name__ == "__main__":``, as everything that starts processes. A CPU share or a rate of a link
    needs root; without them any user can run a job, over the loopback. Where ``loss()`` fails, ``warnings`` of the
    record says so, and the held-out losses from there on are None.

    Args:
        train: (seed, worker, workers) -> ``Training``; a function of a module.
        synchrony: when workers commit and wait.
        workers: a ``WorkerPlace`` each.
        servers: a ``ServerPlace`` each; the parameters are divided equally.
        seconds: how long the workers train, once all are ready.
        seed: given to ``train``.
        point_s: seconds between two points of the loss.

    Raises:
        UsageError: an argument that cannot be, a limit that the kernel refuses, parameters that differ.
        CdmppError: a process that failed or ended, with its last words, and a worker that has ended no batch.
    """
    check_places(workers, servers)
    decisions = synchrony.decisions(len(workers))
    check_sendable("train", train)
    with ExitStack() as stack:
        mbits = [*(one.mbit for one in servers), *(one.mbit for one in workers)]
        shares, spots = stack.enter_context(limits([one.cpu_share for one in workers], mbits, fair=len(servers)))
        job = _Job(train, seed, list(workers), list(servers), spots, min(START_LIMIT_S, _LEAST_START_S + seconds))
        stack.callback(job.kill)
        job.start()
        coordinator = Coordinator(decisions, job.pipes, float(point_s), job.has_loss)
        for share, process in zip(shares, job.worker_processes, strict=True):
            if share is not None and process.pid is not None:
                share.take(process.pid)
        coordinator.run(float(seconds), job.initial_loss)
        if idle := [number for number, one in enumerate(coordinator.ledgers) if not one.batch_s]:
            raise CdmppError(
                f"worker {idle[0]} ended no batch within {seconds:g} s: give it more seconds, a larger CPU share or "
                "smaller batches"
            )
        job.kill()
        losses, warnings = job.held_out_losses(coordinator.snapshots)
        losses = losses or [None] * len(coordinator.losses)
    points = [LossPoint(*point, loss) for point, loss in zip(coordinator.losses, losses, strict=True)]
    return RunRecord(
        {"name": synchrony.name, **vars(synchrony)},
        seed,
        float(seconds),
        _FLOAT_BYTES * job.count,
        tuple(_worker_record(*pair, job.count) for pair in zip(workers, coordinator.ledgers, strict=True)),
        tuple(_server_records(job, coordinator, float(seconds))),
        tuple(points),
        warnings,
    )


@dataclass
class _Job:
    """The processes of a job."""

    train: TrainFunction
    seed: int
    workers: list[WorkerPlace]
    servers: list[ServerPlace]
    spots: Sequence[namespaces.Place | None]
    """Places of the servers, then of the workers."""
    start_limit_s: float
    """Most seconds until a worker has ended the batches before the clock starts."""

    def __post_init__(self) -> None:
        awaited = f": its training function and {WARM_UP} batches have not ended, which have {self.start_limit_s:g} s"
        self._crew = Crew("run", [__name__, self.train.__module__], self.start_limit_s, awaited)
        self.worker_processes: list[Any] = []
        self.has_loss = False
        self.initial_loss = 0.0
        self.count = 0
        self.bounds: list[int] = []

    def start(self) -> None:
        """Start all processes, and let all workers have the parameters of worker 0."""
        count = len(self.workers)
        worker_ends = []
        for number, worker in enumerate(self.workers):
            spot = self.spots[len(self.servers) + number]
            worker_ends.append(self._crew.start(work, self.train, self.seed, number, count, spot, worker.core))
            self.worker_processes.append(self._crew.processes[-1])
        ready = [self._crew.told(end, f"worker {number}") for number, end in enumerate(worker_ends)]
        self._divide([one["count"] for one in ready], [one["shapes"] for one in ready])
        server_ends, thread_ends = [], []
        for number, place in enumerate(self.servers):
            threads = [self._crew.pipe() for _ in self.workers]
            end = self._crew.start(serve, [theirs for _, theirs in threads], self.spots[number], place.core)
            server_ends.append(end)
            thread_ends.append([ours for ours, _ in threads])
            for _, theirs in threads:
                theirs.close()
        self.pipes = Pipes(worker_ends, server_ends, thread_ends)
        addresses = [self._crew.told(end, f"server {number}")["address"] for number, end in enumerate(server_ends)]
        self.has_loss = all(one["has_loss"] for one in ready)
        self.initial_loss = float(np.mean([one["loss"] for one in ready]))
        for number, end in enumerate(server_ends):
            tell(end, count=self.bounds[number + 1] - self.bounds[number])
        for end in worker_ends:
            tell(end, servers=addresses, bounds=self.bounds)
        self._share_parameters()

    def _divide(self, counts: Sequence[int], shapes: Sequence[Sequence[Sequence[int]]]) -> None:
        self.count = counts[0]
        if odd := [number for number, one in enumerate(counts) if one != self.count]:
            raise UsageError(
                f"worker {odd[0]} trains {counts[odd[0]]:,} parameters, worker 0 {self.count:,}: expected as many"
            )
        for worker, theirs in enumerate(shapes):
            for number, (one, first) in enumerate(zip_longest(theirs, shapes[0])):
                if one != first:
                    kinds = ["missing" if kind is None else f"of shape {tuple(kind)}" for kind in (one, first)]
                    raise UsageError(
                        f"parameters[{number}] is {kinds[0]} on worker {worker} and {kinds[1]} on worker 0: expected "
                        "the same tensors in the same order"
                    )
        if len(self.servers) > self.count:
            raise UsageError(f"{len(self.servers)} servers for {self.count} parameters: expected one each at most")
        self.bounds = [self.count * number // len(self.servers) for number in range(len(self.servers) + 1)]

    def _share_parameters(self) -> None:
        for threads in self.pipes.threads:
            for worker, pipe in enumerate(threads):
                self._crew.told(pipe, f"a server, worker {worker}")
            tell(threads[0], do="set")
            self._crew.told(threads[0], "a server")
            for pipe in threads:
                tell(pipe, do="send")
        for number, end in enumerate(self.pipes.workers):
            self._crew.told(end, f"worker {number}")

    def held_out_losses(self, snapshots: Sequence[Sequence[bytes]]) -> tuple[list[float | None], tuple[str, ...]]:
        """Compute the loss of the parameters at each point, up to one where ``loss`` fails, and a warning if it does.

        From there on they are None. There are none where the training has no ``loss``.
        """
        if not self.has_loss:
            return [], ()
        end = self._crew.start(evaluate, self.train, self.seed, len(self.workers))
        found = list[float | None]()
        try:
            for parts in snapshots:
                with suppress(ConnectionError):  # its last words are read below
                    end.send_bytes(b"".join(parts))
                found.append(self._crew.told(end, "loss()", "ended its process")["loss"])
        except CdmppError as error:
            missing = [None] * (len(snapshots) - len(found))
            warning = f"held-out losses are missing from point {len(found)} of {len(snapshots)} on: {error}"
            return found + missing, (warning,)
        finally:
            self.kill()
        return found, ()

    def kill(self) -> None:
        """End all processes."""
        self._crew.kill()


def _worker_record(place: WorkerPlace, ledger: Ledger, count: int) -> WorkerRecord:
    added = [one for one in ledger.commits if one.weight]
    counts = np.unique([one.staleness for one in added], return_counts=True) if added else ((), ())
    mean_s = float(np.mean(ledger.batch_s))
    share = WorkerShare(
        batches=len(ledger.batch_s),
        samples=ledger.samples,
        commits=len(added),
        dropped=len(ledger.commits) - len(added),
        waiting_s=ledger.seconds["wait"],
        communication_s=ledger.seconds["communicate"],
        staleness={int(stale): int(often) for stale, often in zip(*counts, strict=True)},
        sent_bytes=float(_FLOAT_BYTES * count * len(ledger.commits)),
        received_bytes=float(_FLOAT_BYTES * count * ledger.pulls),
    )
    return WorkerRecord(place, share, mean_s, float(np.std(ledger.batch_s)) / mean_s, tuple(ledger.commits))


def _server_records(job: _Job, coordinator: Coordinator, seconds: float) -> list[ServerRecord]:
    commits = sum(len(one.commits) for one in coordinator.ledgers)
    pulls = sum(one.pulls for one in coordinator.ledgers)
    queue = coordinator.queued_s / seconds
    records = []
    for number, place in enumerate(job.servers):
        part = _FLOAT_BYTES * (job.bounds[number + 1] - job.bounds[number])
        share = ServerShare(coordinator.busy_s[number], queue, float(part * pulls), float(part * commits))
        records.append(ServerRecord(place, share, part))
    return records
