"""Block: plans on one arrangement of the devices, and what is known of them; joined they are those of a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from cdmpp.plans.candidates import VALID, Candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.overlap import Floats
from cdmpp.plans.plan_stages import PlanStages
from cdmpp.plans.question import Judged
from cdmpp.plans.stage_costs import PARTS
from cdmpp.plans.step_terms import FIELDS, step_terms
from cdmpp.plans.twins import twins
from cdmpp.plans.unlike.arrangement import Column
from cdmpp.plans.unlike.mixed_stages import joint_s
from cdmpp.steps.strategy import IntArray

_STEP = ("compute_s", "bubble_s", "update_s", "exposed_s", "once_s")
"""Terms that a step is the sum of."""


@dataclass(frozen=True)
class Variant:
    """It holds the settings that only plans on unlike devices have."""

    devices: tuple[str, ...]
    """Each rank has one."""
    cuts: tuple[str, ...] | None
    """Stages begin here; None: there is one, or devices are equal and stages are balanced."""
    shares: tuple[int, ...] = ()
    """Micro-batches of each replica; empty: equally many."""


@dataclass(frozen=True)
class UnlikeCandidates(Candidates):
    """A plan of the question on each arrangement of the devices."""

    variants: tuple[Variant, ...] = ()
    variant: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Place in ``variants``; -1 for a plan that cannot be wherever its ranks stand."""


@dataclass(frozen=True)
class UnlikeJudged(Judged):
    """All plans of a job on unlike devices."""

    short: Floats = field(default_factory=lambda: np.zeros(0))
    """Bytes that the device lacks that lacks most under each plan; 0 and less where all hold it."""

    def why_not(self, row: int) -> str:
        """Say why a plan cannot be; empty where it can."""
        if self.fits[row] or not self.short[row] > 0 or self.twins[row]:
            return super().why_not(row)
        return "needs more memory than one of the devices has"


class Block:
    """Plans on one arrangement, and what is known of them so far."""

    def __init__(self, plans: Candidates) -> None:
        self.plans, count = plans, len(plans)
        self.values = {name: np.full(count, np.nan) for name in (*FIELDS, *PARTS)}
        self.variants: list[Variant | None] = [None] * count
        self.errors, self.dropped = dict[int, str](), np.zeros(count, np.bool_)
        self.short = np.full(count, -np.inf)
        """Bytes that the device lacks that lacks most."""

    @classmethod
    def of(cls, plans: Candidates, rows: IntArray) -> Block:
        """Take some plans."""
        return cls(plans.taken(rows))

    @classmethod
    def invalid(cls, plans: Candidates) -> Block:
        """Take the plans that cannot be wherever their ranks stand."""
        return cls(plans.taken(np.flatnonzero(plans.reason != VALID)))

    @classmethod
    def refused(cls, plans: Candidates, rows: IntArray, why: str) -> Block:
        """Take some plans that cannot be."""
        found = cls.of(plans, rows)
        found.refuse(np.arange(len(rows)), why)
        return found

    def refuse(self, rows: IntArray, why: str) -> None:
        """Note why some plans cannot be."""
        self.errors |= dict.fromkeys(rows.tolist(), why)

    def drop(self, rows: IntArray) -> None:
        """Leave some plans out, since others are the same."""
        self.dropped[rows] = True

    @property
    def step_s(self) -> Floats:
        """Return the seconds of a step; NaN where a plan cannot be."""
        return sum((self.values[name] for name in _STEP), np.zeros(len(self.plans)))

    def put(
        self, rows: IntArray, plans: Candidates, columns: Mapping[Column, PlanStages],
        many: Mapping[Column, IntArray], variants: list[Variant], is_chained: IntArray,
    ) -> None:  # fmt: skip
        """Take the terms of the replica that ends last, and the time in which it waits for others as a bubble."""
        best_s, found = np.full(len(rows), -np.inf), dict[str, Floats]()
        for column, stages in columns.items():
            own = np.arange(len(rows))
            once_s = stages.once_s * (1.0 if stages.count > 1 else many[column] / plans.micro_batches)
            terms = step_terms(replace(plans, micro_batches=many[column]), replace(stages, rows=own, once_s=once_s))
            step_s = sum((terms[name] for name in _STEP), np.zeros(len(rows)))
            later = step_s > best_s
            best_s = np.where(later, step_s, best_s)
            found = {name: np.where(later, value, found.get(name, value)) for name, value in terms.items()}
        if len(columns) > 1:
            found["bubble_s"] += self._waits_s(plans, columns, many, is_chained, best_s - found["once_s"])
        for name, value in found.items():
            self.values[name][rows] = value
        for row, variant in zip(rows.tolist(), variants, strict=True):
            self.variants[row] = variant

    def _waits_s(
        self, plans: Candidates, columns: Mapping[Column, PlanStages], many: Mapping[Column, IntArray],
        is_chained: IntArray, alone_s: Floats,
    ) -> Floats:  # fmt: skip
        """Seconds by which a step is longer than that of its last replica by itself; 0 where ranks have several stages.

        Lists of schedules know one replica each.
        """
        found = np.zeros(len(plans))
        for number, schedule in enumerate(plans.schedules):
            own = np.flatnonzero(plans.schedule == number)
            if len(own) and not schedule.is_looped:
                taken = {column: stages.taken(own) for column, stages in columns.items()}
                counts = {column: each[own] for column, each in many.items()}
                found[own] = joint_s(taken, counts, schedule, is_chained[own]) - alone_s[own]
        return np.maximum(found, 0.0)

    def hold(self, rows: IntArray, name: str, most: Floats, limit: float) -> None:
        """Note what the ranks on a device hold at most, and how much that is above its limit."""
        held = self.values["memory_bytes"]
        held[rows] = np.fmax(held[rows], most)
        self.short[rows] = np.fmax(self.short[rows], most - limit)


def joined(made: Sequence[Block], inputs_s: float, warnings: tuple[str, ...]) -> UnlikeJudged:
    """Join the plans of all blocks, but those that were dropped."""
    kept = [np.flatnonzero(~block.dropped) for block in made]
    found = [block.variants[row] for block, rows in zip(made, kept, strict=True) for row in rows.tolist()]
    variants = [one for one in found if one is not None]
    which = np.cumsum([one is not None for one in found]) - 1
    all_plans = Candidates.joined([block.plans.taken(rows) for block, rows in zip(made, kept, strict=True)])
    values = {one.name: getattr(all_plans, one.name) for one in fields(Candidates)}
    variant = np.where([one is None for one in found], -1, which)
    plans = UnlikeCandidates(**values, variants=tuple(variants), variant=variant)
    columns = {
        name: np.concatenate([block.values[name][rows] for block, rows in zip(made, kept, strict=True)])
        for name in (*FIELDS, *PARTS)
    }
    errors, begin = dict[int, str](), 0
    for block, rows in zip(made, kept, strict=True):
        errors |= {begin + at: block.errors[row] for at, row in enumerate(rows.tolist()) if row in block.errors}
        begin += len(rows)
    costs = ClosedForm(
        **{name: columns[name] for name in FIELDS}, communication_s={name: columns[name] for name in PARTS},
        errors=errors, inputs_s=inputs_s,
    )  # fmt: skip
    same, short = (
        twins(plans, costs),
        np.concatenate([block.short[rows] for block, rows in zip(made, kept, strict=True)]),
    )
    fits = ~np.isnan(costs.step_s) & ~same & ~(short > 0)
    return UnlikeJudged(plans, costs, fits, same, warnings, short)
