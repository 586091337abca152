"""Replica: one copy of a model whose layers are divided over machines, and how fast it trains by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.held_stages import held_by
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import plan_on
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.step_graph import RankGraph


@dataclass(frozen=True)
class Replica:
    """Machine after machine runs its layers of one batch, forward and then backward; threads have other batches.

    Layers are cut where the slowest machine with its messages is fastest, by dynamic programming over contiguous cuts.
    Up to ``threads x machines`` batches are under way, so that messages hide behind other batches where these suffice.
    """

    work: RankWork
    """The whole step for one batch."""
    machines: int
    link: AlphaBeta
    """Each machine has it, in each direction."""
    is_gpu: bool = False
    """True if the allocator of a GPU counts."""

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Layers of each machine; ``CdmppError``: the model cannot be cut into so many."""
        return Pipeline().stages(self.work.rank, self.machines, self._send_s)

    def _send_s(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self.link.alpha_s + sizes * self.link.beta_s, np.float64)

    @cached_property
    def machine_s(self) -> tuple[float, ...]:
        """Seconds of one batch on each machine with one thread: both passes and the update."""
        return tuple(_seconds(one.rank) for one in self.stages)

    @cached_property
    def pushed_bytes(self) -> tuple[int, ...]:
        """Bytes of the gradients of each machine: it pushes so many to the servers, and pulls as many."""
        return tuple(one.rank.gradient_bytes for one in self.stages)

    def batch_s(self, threads: int, slowdown: float) -> float:
        """Return the seconds between two batches that end, while nobody exchanges parameters.

        Whichever is slower: the threads of the slowest machine; one batch on its way through all machines, shared by
        the batches under way; or the busiest link between two machines.

        Args:
            threads: of each machine.
            slowdown: factor of the seconds of a thread where so many run.
        """
        messages = [size for one in self.stages for size in (*one.sent_bytes, *one.returned_bytes)]
        path_s = slowdown * sum(self.machine_s) + sum(map(self.link.seconds, messages))
        links_s = [
            self.link.beta_s * (sum(one.sent_bytes) + sum(one.returned_bytes)) for one in self.stages
        ]  # what one machine sends: onwards and back
        return max(slowdown * max(self.machine_s) / threads, path_s / (threads * self.machines), *links_s)

    def held_bytes(self, threads: int) -> int | None:
        """Return the bytes of the machine that holds most; None: unknown.

        Parameters, states and gradients are there once. Each batch under way keeps what its backward pass reads, and
        the batch that a thread works on its whole workspace.
        """
        if self.work.memory is None:
            return None
        plan, found = plan_on(1, ParameterServer()), 0
        for number, stage in enumerate(self.stages):
            held = held_by(self.work.memory, self.work.rank, stage, number)
            memory = Memory(held, stage.rank, self.is_gpu, stage.outputs)
            under_way = threads * (self.machines - number)
            live = memory.live()
            own = int(memory.parts(plan, max(2, under_way), under_way).peak_bytes)
            found = max(found, own + (threads - 1) * int(live.passes - live.saved))
        return found


def moved_bytes(rank: RankGraph) -> int:
    """Count the bytes that the ops of a step read and write, as if no cache kept any between two ops."""
    sizes = [op.output_bytes if op.result_bytes is None else op.result_bytes for op in rank.ops]
    results = sum(op.output_bytes + sum(sizes[one] for one in op.inputs) for op in rank.ops)
    return results + sum(one.bytes * (1 + len(one.readers)) for one in rank.gradients)


def slowdowns(work: RankWork, memory_bytes_per_s: float) -> Callable[[int], float]:
    """Return the factor of a thread's seconds by how many run: all together move no more bytes than memory does.

    Args:
        work: of one batch.
        memory_bytes_per_s: of a machine, above 0.
    """
    needed = moved_bytes(work.rank) / _seconds(work.rank)
    return lambda threads: max(1.0, threads * needed / memory_bytes_per_s)


def _seconds(rank: RankGraph) -> float:
    return rank.busy_s + rank.idle_s
