"""Unlike devices as a source: a source for each device that ranks of a job may stand on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import RankWork, StepSource, StepTimes
from cdmpp.steps.strategy import Strategy


class UnlikeSource(StepSource):
    """The same network on several devices; what ranks of a plan without devices compute is that of the first."""

    def __init__(self, sources: Mapping[str, StepSource]) -> None:
        """Take a source a device, by name; ``CdmppError`` where there is none."""
        if not sources:
            raise CdmppError("no devices: name one or more")
        self.sources = dict(sources)
        self._works = dict[tuple[int, ParallelDegrees, tuple[Strategy, ...]], RankWork]()

    @property
    def of(self) -> str:
        """Return what its times are those of, for a reader."""
        return self._first.of

    @property
    def _first(self) -> StepSource:
        return next(iter(self.sources.values()))

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank, with that on each device; ``CdmppError`` where one cannot be."""
        key = batch, degrees, tuple(strategies)
        if key not in self._works:
            each = {name: source.work(*key) for name, source in self.sources.items()}
            first = next(iter(each.values()))
            warnings = tuple(dict.fromkeys(line for work in each.values() for line in work.warnings))
            self._works[key] = replace(first, by_device=each, warnings=warnings)
        return self._works[key]

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes | None:
        """Return the times on the first device."""
        return self._first.times(batch, degrees, strategies)

    def limits(self) -> Mapping[str, int]:
        """Return the largest value of each degree that is possible on all devices."""
        each = [source.limits() for source in self.sources.values()]
        return reduce(lambda a, b: {**a, **{name: min(most, a.get(name, most)) for name, most in b.items()}}, each)

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:
        """Return that on the first device: all have the same network."""
        return self._first.refusal(degree, ranks, strategies)

    def prepare(
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Make all sources ready."""
        batches, degrees = tuple(batches), tuple(degrees)
        for source in self.sources.values():
            source.prepare(batches, degrees, strategies)
