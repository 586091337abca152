"""What is measured: a grid of jobs of equal workers, what they are predicted from, and policies on uneven workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.synchrony.trainings import BATCH_CPU_S
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.policies import SYNCHRONIES, synchrony_of
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace

SERVER_CORE, WORKER_CORE = 0, 1
"""Workers share one core by their quotas, servers the other one."""
NETWORKS = ("cnn", "gpt")
SHARES = (0.1, 0.2)
RATES = (50.0, 100.0, 200.0)
BASE_SHARE = 0.28
"""CPU share of the fastest of the uneven workers: four of them take 0.77 of a core."""
UNEVEN = (1.0, 1.0, 0.5, 0.25)
UNEVEN_MBIT = 200.0
POLICY_NETWORK = "cnn"
SEEDS = range(5)
POLICIES: dict[str, Synchrony] = {
    "bsp": synchrony_of("bsp"),
    "ssp:4": synchrony_of("ssp:4"),
    "async": synchrony_of("async"),
    "local:8": synchrony_of("local:8"),
    "adsp": SYNCHRONIES["adsp"](commits_per_check=4, check_s=6.0, least_s=1.0),  # type: ignore[call-arg]
    "adsp, searched": SYNCHRONIES["adsp"](target_loss=1.5, check_s=4.0, least_s=0.5),  # type: ignore[call-arg]
    "backup:1": synchrony_of("backup:1"),
    "adacomm": SYNCHRONIES["adacomm"](every=8, check_s=4.0),  # type: ignore[call-arg]
    "diloco": SYNCHRONIES["diloco"](every=4),  # type: ignore[call-arg]
    "r2sp": synchrony_of("r2sp"),
}
"""Jobs here are short: ADSP has four commits in 6 s, at least 1 s apart, in place of periods of 60 s and 10 s, and is
searched in periods of 4 s; AdaComm looks every 4 s in place of 60; DiLoCo averages every 4 batches in place of 500."""
POLICY_S = 16.0
UNEVEN_ALONE_S = 3.0
"""Before and after each of those jobs its workers train so long without servers."""


@dataclass(frozen=True)
class Cell:
    """A job of equal workers."""

    network: str
    workers: int
    share: float
    mbit: float
    every: int
    """Batches between two commits of a worker, which waits for nobody."""
    servers: int

    @property
    def name(self) -> str:
        return "/".join(f"{value:g}" if isinstance(value, float) else str(value) for value in asdict(self).values())

    @property
    def about_batch_s(self) -> float:
        """Seconds of a batch, about."""
        return BATCH_CPU_S / self.share

    @property
    def worker_places(self) -> list[WorkerPlace]:
        return [WorkerPlace(self.share, self.mbit, WORKER_CORE)] * self.workers

    @property
    def server_places(self) -> list[ServerPlace]:
        return [ServerPlace(self.mbit, SERVER_CORE)] * self.servers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _grid() -> tuple[Cell, ...]:
    settings = [(0.2, mbit, 1, 1) for mbit in RATES]
    settings += [(0.2, mbit, 1, 2) for mbit in RATES[:2]]
    settings += [(0.1, mbit, 1, 1) for mbit in RATES[:2]]
    settings += [(0.2, mbit, 4, 1) for mbit in RATES[:2]]
    return tuple(Cell(network, workers, *one) for network in NETWORKS for one in settings for workers in (1, 2, 3, 4))


GRID = _grid()


def is_for_fit(cell: Cell) -> bool:
    """The part of the grid that constants are fitted on: one rate and few workers."""
    return cell.mbit == 100.0 and cell.workers <= 2


def steady_rate(commits: Sequence[tuple[float, int]]) -> float:
    """Batches a second of (seconds, batches) of a worker's commits, from that after a quarter of them to the last."""
    counted = commits[len(commits) // 4 :]
    return sum(batches for _, batches in counted[1:]) / (counted[-1][0] - counted[0][0])


def uneven_places() -> list[WorkerPlace]:
    return [WorkerPlace(round(BASE_SHARE * part, 4), UNEVEN_MBIT, WORKER_CORE) for part in UNEVEN]
