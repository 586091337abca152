"""ProvisioningResult: the fastest configurations of a budget, and what more or fewer machines would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.synchrony.outcome import JobOutcome

CLOSED_FORM, REPLAY = "closed form", "replay"


@dataclass(frozen=True)
class Provisioned:
    """One configuration, judged."""

    configuration: Configuration
    batch_s: float
    """Seconds from the end of a batch of a replica to the next, where it waits for nobody."""
    samples_per_s: float
    """Examples a second of all replicas, by ``by``."""
    low: float
    high: float
    """In 8 of 10 cases it lies between these, as far as the seconds of kernels tell."""
    by: str
    """``CLOSED_FORM`` or ``REPLAY``."""
    formula_samples_per_s: float
    """The same by closed form."""
    parts_s: Mapping[str, float]
    """Part of ``pace.PARTS`` -> seconds of it between two commits of a replica, by closed form."""
    load: float
    """Part of the time for which the busiest part of a server is busy, by closed form."""
    knee: float
    """Replicas beyond which the servers set the pace."""
    limit: str
    """This limits it; one of ``pace.PARTS``."""
    memory_bytes: int | None
    """The machine that holds most holds these; None: unknown."""
    outcome: JobOutcome | None = None
    """The replay; None where there is none."""


@dataclass(frozen=True)
class Change:
    """One more or one fewer of something, or another link, with all else as it is."""

    name: str
    configuration: Configuration
    gain: float
    """Examples a second over those of the chosen configuration, less 1, both by closed form."""
    machines: int
    """Machines that it takes more; below 0: fewer."""


@dataclass(frozen=True)
class ProvisioningResult:
    """The answer to a question."""

    question: ProvisioningQuestion
    ranked: tuple[Provisioned, ...]
    """The chosen one first. Replayed ones stand before those that only the closed form judges."""
    possible: int
    """Configurations within the budget."""
    unfit: int
    """Those of them that cannot be cut so, or do not fit into memory."""
    evaluated: int
    """Those whose pace was worked out; the others are slower than one of as many machines, by a bound on their pace."""
    replayed: int
    changes: tuple[Change, ...]
    front: tuple[Provisioned, ...]
    """By rising number of machines the fastest, where it is faster than all with fewer by closed form; each
    as in ``ranked``, where it is there."""
    curve: tuple[tuple[int, float], ...]
    """Replicas, and examples a second by closed form with all else as chosen, up to beyond the knee."""
    warnings: tuple[str, ...]
    """Assumptions and limits of the result, a sentence each."""

    @property
    def best(self) -> Provisioned:
        """Return the chosen configuration."""
        return self.ranked[0]
