"""StageModules: FSDP modules, and parts of them, that each stage of a pipeline holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.plans.cut_places import CutPlaces
from cdmpp.steps.derived import derived
from cdmpp.steps.module_span import ModuleSpan

Span = tuple[ModuleSpan, tuple[int, int], tuple[int, int], bool]
"""A module, or the part of it that a stage holds; its first and last place there in the forward pass; in the backward
pass; and whether a gradient goes through it."""


@dataclass(frozen=True)
class StageModules:
    """Modules of each stage; of one that lies on several, each stage has the parameters that it reads."""

    on: CutPlaces
    cuts: tuple[int, ...]
    of: Sequence[int]
    """Stage of each op; below 0: none, or all."""
    local: Sequence[int]
    """Place of each op in its stage."""
    holders: Mapping[str, tuple[int, ...]]
    """Parameter -> the stages that hold it."""

    def each(self) -> tuple[list[Span], ...]:
        """Return the modules of each stage, in the order of the forward pass."""
        found: tuple[list[Span], ...] = tuple([] for _ in range(len(self.cuts) + 1))
        lasts = dict[int, int]()
        for place in np.flatnonzero(self.on.columns.is_backward).tolist():
            lasts[self.of[place]] = self.local[place]
        for module in self.on.rank.modules:
            first, end = (bisect_right(self.cuts, place) for place in module.forward)
            for number in range(first, end + 1):
                if (last := lasts.get(number)) is None:
                    continue
                span = self._whole(module, number) if first == end else self._divided(module, number, first)
                if span is not None:
                    part, forward, backward, reached = span
                    found[number].append((part, forward, backward if reached else (last, last), reached))
        for own in found:
            own.sort(key=lambda one: one[1])
        return found

    def _whole(self, module: ModuleSpan, number: int) -> Span:
        first, last = (self.local[place] for place in module.forward)
        inside = range(module.backward[0], module.backward[1] + 1)
        ends = [next((p for p in way if self.of[p] == number), None) for way in (inside, inside[::-1])]
        spans = [self.local[place] for place in ends if place is not None]
        return module, (first, last), (spans[0], spans[-1]) if spans else (0, 0), module.in_backward and bool(spans)

    def _divided(self, module: ModuleSpan, number: int, first: int) -> Span | None:
        readers = (place for one in self.on.members[module.name] for place in one.readers)
        read, part = sorted(p for p in readers if self.of[p] == number), self._part(module, number, first)
        if part is None or not read:
            return None
        spans, ends = backward_of(self.on, self.of, self.local, read, number), (read[0], read[-1])
        first_place, last_place = (self.local[place] for place in ends)
        both = (spans[0], spans[-1]) if spans else (0, 0)
        return part, (first_place, last_place), both, module.in_backward and bool(spans)

    def _part(self, module: ModuleSpan, number: int, first: int) -> ModuleSpan | None:
        """The part of a module that stage ``number`` holds. What is not trained counts on the first of its stages."""
        members = self.on.members[module.name]
        own = [number in self.holders[one.name] for one in members]
        frozen = module.bytes - sum(one.bytes for one in members) if number == first else 0
        size = sum(one.bytes for one, is_own in zip(members, own, strict=True) if is_own) + frozen
        if size <= 0:
            return None
        trained = module.rows if module.trained_rows is None else module.trained_rows
        rows = tuple(row for row, is_own in zip(trained, own, strict=False) if is_own)
        if len(trained) != len(members):
            rows = ()
        return derived(module, bytes=size, rows=() if frozen else rows, trained_rows=rows or None)


def backward_of(
    on: CutPlaces, of: Sequence[int], local: Sequence[int], readers: Sequence[int], number: int
) -> list[int]:
    """List places in a stage of the ops of the backward pass that belong to any of ``readers``.

    Args:
        on: the whole rank.
        of: stage of each op.
        local: place of each op in its stage.
        readers: ops of the forward pass.
        number: the stage.
    """
    found = (place for one in {*readers} for place in on.backward_of.get(one, ()))
    return sorted(local[place] for place in found if of[place] == number)
