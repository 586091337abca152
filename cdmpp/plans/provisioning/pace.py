"""Pace: how many commits a second replicas and servers reach together, by closed form.

The model is rebuilt by us from what Yan et al. (KDD 2015) say of theirs, whose formulas are not public to us: training
by the slowest machine, exchanges hidden up to the time between two commits, and a queue at the servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.loop import ClosedLoop
from cdmpp.plans.provisioning.question import ProvisioningQuestion

COMPUTE, WORKER_LINK, SERVER_LINK, ADDING, WAITING = PARTS = (
    "compute", "worker link", "server link", "server's adding", "slowest worker",
)  # fmt: skip
"""Parts of the time between two commits of a replica: to train, to push and pull over the own link or with the queue at
the servers, and to wait for the slowest replica."""
_BUSY = 0.9
"""Servers that are busy for this part of the time limit the pace."""


@dataclass(frozen=True)
class Pace:
    """Replicas train, push, and pull; each server serves all of them."""

    question: ProvisioningQuestion
    configuration: Configuration
    factor: float = 1.0
    """Factor of the seconds of all kernels."""

    @cached_property
    def train_s(self) -> float:
        """Seconds that a replica trains between two commits."""
        one, asked = self.configuration, self.question
        batch_s = asked.replica(one.machines_per_replica).batch_s(one.threads, asked.slowdown_of(one.threads))
        return self.factor * asked.commit_every * batch_s

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return self.question.replica(self.configuration.machines_per_replica).pushed_bytes

    @cached_property
    def served_s(self) -> tuple[float, float, float]:
        """Seconds for which one commit keeps each server: its link in, its adding, its link out."""
        part = sum(self._sizes) / self.configuration.servers
        link_s = self.question.link.beta_s * part
        return link_s, part / self.question.add_bytes_per_s, link_s

    @cached_property
    def alone_s(self) -> float:
        """Seconds of a push and a pull where nobody else exchanges."""
        return 2 * self.way_s + self.served_s[1]

    @cached_property
    def way_s(self) -> float:
        """Seconds of a push where nobody else pushes: by the machine that pushes most, or by the servers' links."""
        link = self.question.link
        return link.alpha_s + max(link.beta_s * max(self._sizes), self.served_s[0])

    @cached_property
    def cycle_s(self) -> float:
        """Seconds from a commit of a replica to its next one."""
        if self.question.has_rounds:
            return self._round_s
        replicas, overlaps = self.configuration.replicas, self.question.overlaps
        return ClosedLoop(replicas, self.train_s, self.served_s, self.alone_s, overlaps).cycle_s

    @property
    def samples_per_s(self) -> float:
        """Return examples a second of all replicas."""
        return self.question.commit_every * self.question.batch * self.configuration.replicas / self.cycle_s

    @property
    def most_samples_per_s(self) -> float:
        """Return examples a second that it cannot exceed: each replica by itself, or the busiest part of a server."""
        cycle_s = max(self.lone_s, self.configuration.replicas * max(self.served_s))
        return self.question.commit_every * self.question.batch * self.configuration.replicas / cycle_s

    @property
    def lone_s(self) -> float:
        """Return the seconds between two commits of a replica that has the servers for itself."""
        return max(self.train_s, self.alone_s) if self.question.overlaps else self.train_s + self.alone_s

    @property
    def knee(self) -> float:
        """Return the replicas beyond which the servers set the pace: there both bounds of it are equal."""
        return self.lone_s / max(self.served_s) if max(self.served_s) else math.inf

    @property
    def load(self) -> float:
        """Return the part of the time for which the busiest part of a server is busy, from 0 to 1."""
        return self.configuration.replicas / self.cycle_s * max(self.served_s)

    @cached_property
    def _round_s(self) -> float:
        """Replicas push as they end, updates are added one after another, and all pull at once.

        The servers' links share out what is there: the round's pushes have ended when, from some replica on, all bytes
        that were still to come went through without a break.
        """
        ended, replicas = self._ended_s, self.configuration.replicas
        in_s, add_s, out_s = self.served_s
        left = replicas - np.arange(replicas)
        alpha_s = self.question.link.alpha_s
        busy_s = ended + alpha_s + left * in_s
        first = int(busy_s.argmax())
        pushed_s = np.maximum(ended + self.way_s, 0.0)
        pushed_s[first:] = max(busy_s[first], pushed_s[-1])
        added_s = float((pushed_s + left * add_s).max())
        return added_s + max(self.way_s, alpha_s + replicas * out_s)

    @cached_property
    def _ended_s(self) -> NDArray[np.float64]:
        """Seconds until each replica has trained, in rising order: expected order statistics, by Blom's formula."""
        replicas, asked = self.configuration.replicas, self.question
        at = (np.arange(1, replicas + 1) - 0.375) / (replicas + 0.25)
        spread = asked.spread * asked.commit_every**-0.5
        return self.train_s * (1 + spread * np.array([NormalDist().inv_cdf(one) for one in at]))

    @property
    def slowest_s(self) -> float:
        """Return the seconds until the slowest replica has trained, where all wait for it."""
        return float(self._ended_s[-1]) if self.question.has_rounds else self.train_s

    @cached_property
    def parts_s(self) -> Mapping[str, float]:
        """Part of ``PARTS`` -> seconds of it between two commits that nothing hides; their sum is ``cycle_s``."""
        found = dict.fromkeys(PARTS, 0.0)
        if not self.question.overlaps or self.cycle_s <= self.train_s:
            found[COMPUTE], found[WAITING] = self.train_s, self.slowest_s - self.train_s
        exchange_s = self.cycle_s - found[COMPUTE] - found[WAITING]
        in_s, add_s, _ = self.served_s
        added_s = min(add_s, exchange_s)
        wire_s = min(2 * self.way_s, exchange_s - added_s)
        is_wide = self.question.link.beta_s * max(self._sizes) > in_s
        found[ADDING] += added_s
        found[WORKER_LINK if is_wide else SERVER_LINK] += wire_s
        found[self._busiest] += exchange_s - added_s - wire_s
        return found

    @property
    def _busiest(self) -> str:
        return SERVER_LINK if self.served_s[0] >= self.served_s[1] else ADDING

    @property
    def limit(self) -> str:
        """Return what limits the pace: a server that is busy nearly always, else the largest part."""
        return self._busiest if self.load > _BUSY else max(PARTS, key=lambda name: self.parts_s[name])
