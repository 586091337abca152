"""StageKinds: which stages of a cut are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.cut import Cut


@dataclass(frozen=True)
class StageKinds:
    """Stages that are equal in what is said here differ in names, and in how long their ops take."""

    cut: Cut

    @cached_property
    def exchange(self) -> tuple[tuple[object, ...], ...]:
        """Each stage has one, equal for stages whose replicas exchange alike."""
        return tuple(self._exchange_kind(number) for number in range(self.cut.count))

    def _exchange_kind(self, number: int) -> tuple[object, ...]:
        gradients = [
            (one.bytes, self.cut.ready(one, number), one.dtype, one.is_used, one.apart)
            for one in self.cut.gradients[number]
        ]
        modules = [
            (part.bytes, part.rows, part.trained_rows, part.is_kept, *spans)
            for part, *spans in self.cut.modules[number]
        ]
        phases = self.cut.on.columns.phase_numbers[self.cut.places[number]].tobytes()
        return phases, tuple(gradients), tuple(modules), self.cut.buffers(number), self.cut.shares[number]

    def memory(self, kinds: NDArray[np.int64]) -> tuple[tuple[object, ...], ...]:
        """Return what is equal for stages that hold as much: what exchanges depend on, and what ops write and read.

        Args:
            kinds: a number for each op of the whole rank, the same for those that write and read as many bytes.
        """
        cut, (readers, sources) = self.cut, self.cut.on.columns.reads
        stages, is_inside = cut.of[readers], cut.of[readers] == cut.of[sources]
        apart = np.where(is_inside, cut.local[readers] - cut.local[sources], 0)
        order = np.argsort(stages, kind="stable")
        bounds = np.searchsorted(stages[order], np.arange(cut.count + 1)).tolist()
        return tuple(
            (kinds[own].tobytes(), apart[order[begin:end]].tobytes(), cut.outputs(number), *self.exchange[number])
            for number, (own, (begin, end)) in enumerate(zip(cut.own_places, pairwise(bounds), strict=True))
        )
