"""Search: a question about machines in, the fastest configurations out.

All configurations of the budget are enumerated. Of those with as many machines a bound orders them, and the pace of one
is worked out only where its bound is above the best of them so far; the best ones of all are replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import TypeVar

from cdmpp.errors import CdmppError, InfeasiblePlanError
from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.pace import Pace
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.plans.provisioning.replayed import replayed
from cdmpp.plans.provisioning.result import CLOSED_FORM, REPLAY, Change, Provisioned, ProvisioningResult
from cdmpp.platform.limits import Limits, checked
from cdmpp.units import quantity

EQUAL = 0.01
"""The one with the fewest machines is chosen of configurations slower than the fastest by at most this part."""
_CURVE = 2.0
"""The curve over replicas goes to so many times the chosen ones, or those of the knee."""
_POINTS = 32
COUNT = Limits(0, 1000, "configurations")
Judged = TypeVar("Judged", Pace, Provisioned)


@checked(top=COUNT, replays=COUNT)
def provision(question: ProvisioningQuestion, top: int = 10, replays: int = 5) -> ProvisioningResult:
    """Find the fastest configurations; the same question gives the same answer.

    Args:
        question: the budget and the job.
        top: configurations that are shown, at least those that are replayed.
        replays: of the best ones, so many are replayed.

    Raises:
        InfeasiblePlanError: no configuration fits into memory; it says which needs least.
    """
    return _Search(question).result(max(1, top, replays), replays)


class _Search:
    def __init__(self, question: ProvisioningQuestion) -> None:
        self.question = question
        self._refused = dict[tuple[int, int], str]()
        self._held = dict[tuple[int, int], int | None]()

    @cached_property
    def fitting(self) -> list[Configuration]:
        """Configurations that can be and fit into memory."""
        found = [one for one in self.question.configurations() if not self._why_not(one)]
        if not found:
            raise InfeasiblePlanError(self._missing())
        return found

    @cached_property
    def paces(self) -> list[Pace]:
        """Those whose pace was worked out: others are slower than one of as many machines, by their bound."""
        found = list[Pace]()
        ordered = sorted(self.fitting, key=lambda one: one.machines)
        for _, group in groupby(ordered, key=lambda one: one.machines):
            bounded = sorted((Pace(self.question, one) for one in group), key=lambda pace: -pace.most_samples_per_s)
            best = 0.0
            for pace in bounded:
                if pace.most_samples_per_s < (1 - EQUAL) * best:
                    break
                found.append(pace)
                best = max(best, pace.samples_per_s)
        return found

    def result(self, top: int, replays: int) -> ProvisioningResult:
        """Replay the best, and say what changes would bring."""
        shown = [self._formula(pace) for pace in ranked(self.paces)[:top]]
        best = ranked([self._replayed(one) for one in shown[:replays]]) + shown[replays:]
        chosen = best[0].configuration
        known = {one.configuration: one for one in best}
        front = tuple(known.get(one.configuration, one) for one in self._front())
        possible = self.question.possible
        return ProvisioningResult(
            self.question, tuple(best), possible, possible - len(self.fitting), len(self.paces), len(shown[:replays]),
            tuple(self._changes(chosen)), front, tuple(self._curve(chosen)),
            tuple(dict.fromkeys((*self.question.warnings, *self.question.work.warnings))),
        )  # fmt: skip

    def _front(self) -> Iterator[Provisioned]:
        """By number of machines the fastest, where it is faster than all with fewer."""
        fastest = 0.0
        for pace in sorted(self.paces, key=lambda one: (one.configuration.machines, -one.samples_per_s)):
            if pace.samples_per_s > (1 + EQUAL) * fastest:
                fastest = pace.samples_per_s
                yield self._formula(pace)

    def _replayed(self, formula: Provisioned) -> Provisioned:
        speed, outcome = replayed(self.question, formula.configuration)
        ratio = speed / formula.samples_per_s
        return replace(
            formula, samples_per_s=speed, low=ratio * formula.low, high=ratio * formula.high, by=REPLAY, outcome=outcome
        )

    def _formula(self, pace: Pace) -> Provisioned:
        """The closed form, with an interval by kernels that are all slower, or all faster."""
        work, one = self.question.work, pace.configuration
        low, high = (replace(pace, factor=factor).samples_per_s for factor in (work.high, work.low))
        return Provisioned(
            one, pace.train_s / self.question.commit_every, pace.samples_per_s, low, high, CLOSED_FORM,
            pace.samples_per_s, pace.parts_s, pace.load, pace.knee, pace.limit,
            self._held[one.machines_per_replica, one.threads],
        )  # fmt: skip

    def _changes(self, chosen: Configuration) -> Iterator[Change]:
        base, most = Pace(self.question, chosen), {"threads": self.question.threads.last}
        for field in ("servers", "replicas", "threads"):
            for word, step in (("more", 1), ("fewer", -1)):
                count = getattr(chosen, field) + step
                if 1 <= count <= most.get(field, count):
                    other = replace(chosen, **{field: count})
                    if not self._why_not(other):
                        yield _change(f"one {word} {field.removesuffix('s')}", base, Pace(self.question, other))
        link = replace(self.question.link, beta_s=self.question.link.beta_s / 2)
        yield _change("links of twice the bandwidth", base, Pace(replace(self.question, link=link), chosen))

    def _curve(self, chosen: Configuration) -> Iterator[tuple[int, float]]:
        """Speeds from one replica to beyond the knee, with all else as chosen; more than the budget too."""
        most = int(_CURVE * max(min(Pace(self.question, chosen).knee, self.question.machines), chosen.replicas))
        for replicas in sorted({*range(1, most + 1, max(1, most // _POINTS)), chosen.replicas}):
            yield replicas, Pace(self.question, replace(chosen, replicas=replicas)).samples_per_s

    def _why_not(self, one: Configuration) -> str:
        """Why a configuration cannot be; empty where it can."""
        key = one.machines_per_replica, one.threads
        if key not in self._refused:
            try:
                held = self._held[key] = self.question.replica(key[0]).held_bytes(key[1])
                limit = self.question.memory_limit_bytes
                self._refused[key] = "" if limit is None or held is None or held <= limit else "memory"
            except CdmppError as error:
                self._refused[key] = str(error)
        return self._refused[key]

    def _missing(self) -> str:
        known = {key: held for key, held in self._held.items() if held is not None}
        if not known:
            return next(iter(self._refused.values()))
        (machines, threads), held = min(known.items(), key=lambda one: one[1])
        return (
            f"no configuration fits: a machine may hold {quantity(self.question.memory_limit_bytes, 'B')}, and it "
            f"holds {quantity(held, 'B')} with {machines} machines a replica and {threads} threads, which need least: "
            "allow more machines a replica, fewer threads or a smaller batch"
        )


def ranked(found: Sequence[Judged]) -> list[Judged]:
    """Order by speed; before all, those that are about as fast as the fastest, by their number of machines."""
    if not found:
        return []
    least = (1 - EQUAL) * max(one.samples_per_s for one in found)

    def key(one: Judged) -> tuple[bool, int, float, Configuration]:
        is_near = one.samples_per_s >= least
        return not is_near, one.configuration.machines if is_near else 0, -one.samples_per_s, one.configuration

    return sorted(found, key=key)


def _change(name: str, base: Pace, other: Pace) -> Change:
    machines = other.configuration.machines - base.configuration.machines
    return Change(name, other.configuration, other.samples_per_s / base.samples_per_s - 1, machines)
