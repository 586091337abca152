"""Closed form: time and memory of all plans at once, in operations on arrays.

ParaDL's formulas (HPDC'21, table 3) are the special case of equal layers, one bucket and no overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from cdmpp.plans.overlap import Floats


@dataclass(frozen=True)
class ClosedForm:
    """Each array has one number a plan, NaN where the plan cannot be; seconds of one step, from update to update."""

    compute_s: Floats
    """Forward and backward passes of all micro-batches on the stage that takes longest."""
    bubble_s: Floats
    """A stage waits for others: the pipeline fills and drains, and stages are unequal."""
    update_s: Floats
    exposed_s: Floats
    """Seconds of communication that nothing hides."""
    once_s: Floats
    """Seconds that a step takes once, such as for loading a batch."""
    start_up_share: Floats
    """Share of the communication in the open, but for halos, that does not depend on sizes."""
    memory_bytes: Floats
    """Most bytes of a rank; NaN also where memory is unknown."""
    low_s: Floats
    high_s: Floats
    """In 8 of 10 cases a step takes between ``low_s`` and ``high_s``, as far as kernels and collectives tell."""
    communication_s: Mapping[str, Floats]
    """One of ``PARTS`` -> seconds that it would take by itself, hidden or not."""
    errors: Mapping[int, str]
    """Row of a plan that only its costs show to be impossible -> the reason."""
    inputs_s: Floats | float = 0.0
    """The input pipeline needs so long for the examples of a step, next to everything else."""

    def part(self, begin: int, end: int) -> ClosedForm:
        """Return the costs of the plans from row ``begin`` up to ``end``, which is not among them."""
        names = [one.name for one in fields(self) if one.name not in ("communication_s", "errors", "inputs_s")]
        return replace(
            self,
            **{name: getattr(self, name)[begin:end] for name in names},
            communication_s={name: values[begin:end] for name, values in self.communication_s.items()},
            errors={row - begin: why for row, why in self.errors.items() if begin <= row < end},
        )

    @property
    def ranks_s(self) -> Floats:
        """Return the seconds of a step whose examples are always there; the interval belongs to these."""
        return self.compute_s + self.bubble_s + self.update_s + self.exposed_s + self.once_s

    @property
    def step_s(self) -> Floats:
        """Return the seconds of a step: as long as its ranks take, or its examples."""
        return np.maximum(self.ranks_s, self.inputs_s)

    @property
    def no_overlap_s(self) -> Floats:
        """Return the seconds of a step whose communication is all in the open."""
        open_s = sum(self.communication_s.values(), np.zeros_like(self.once_s))
        return np.maximum(self.compute_s + self.bubble_s + self.update_s + self.once_s + open_s, self.inputs_s)
