"""StageKinds: which stages of a cut are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.plans.cut import Cut


@dataclass(frozen=True)
class StageKinds:
    """Stages that are equal in what is said here differ in names, and in how long their ops take."""

    cut: Cut

    @cached_property
    def exchange(self) -> tuple[tuple[object, ...], ...]:
        """What is equal for stages whose replicas exchange alike; of each stage."""
        return tuple(self._exchange_kind(number) for number in range(self.cut.count))

    def _exchange_kind(self, number: int) -> tuple[object, ...]:
        gradients = [
            (one.bytes, self.cut.ready(one, number), one.dtype, one.is_used) for one in self.cut.gradients[number]
        ]
        modules = [
            (part.bytes, part.rows, part.trained_rows, part.is_kept, *spans)
            for part, *spans in self.cut.modules[number]
        ]
        phases = self.cut.on.columns.phase_numbers[self.cut.places[number]].tobytes()
        return phases, tuple(gradients), tuple(modules), self.cut.buffers(number), self.cut.shares[number]

    @cached_property
    def memory(self) -> tuple[tuple[object, ...], ...]:
        """What is equal for stages that hold as much: what exchanges depend on, and what ops write and read."""
        return tuple(self._memory_kind(number) for number in range(self.cut.count))

    def _memory_kind(self, number: int) -> tuple[object, ...]:
        readers, sources = self.cut.on.columns.reads
        own, read = (of == number for of in (self.cut.of, self.cut.of[readers]))
        apart = np.where(self.cut.of[sources] == number, self.cut.local[readers] - self.cut.local[sources], 0)[read]
        kinds = self.cut.on.columns.op_kinds[own].tobytes()
        return kinds, apart.tobytes(), self.cut.outputs(number), *self.exchange[number]
