"""Which lanes of each warp are where: lanes part at branches and meet where a barrier of convergence says so.

A warp has one path that goes on; others wait until it has ended, or stands where lanes are to meet (``BSYNC``,
``WARPSYNC``) or a block is to (``BAR``). So processors since Volta do it, and which path goes first is not written
down; how many instructions are issued does not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cdmpp.machine_code.gpu.launch import LANES


class Path(NamedTuple):
    """Lanes that are at the same place."""

    at: int
    lanes: int
    """One bit of each."""


@dataclass
class _Rest:
    """What a warp has besides the path that goes on."""

    ready: list[Path] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    """Barrier of convergence -> lanes that meet there."""
    waiting: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """(barrier, place behind it) -> lanes that are there."""
    barred: list[Path] = field(default_factory=list)
    """At the barrier of the block."""


class StuckError(Exception):
    """No lane can go on."""


class Paths:
    """The paths of all warps."""

    def __init__(self, exists: np.ndarray, warps_of_block: int) -> None:
        self.at = np.zeros(len(exists), np.int64)
        self.mask = exists.copy()
        self.alive = exists.copy()
        self.runs = exists.any(1)
        self.rest = [_Rest() for _ in exists]
        self.warps_of_block = warps_of_block

    def next_place(self) -> int:
        """The smallest place of a path that can go on; -1 where all have ended."""
        if self.runs.any():
            return int(self.at[self.runs].min())
        if self.alive.any():
            raise StuckError("no lane can go on")
        return -1

    def branch(self, warps: np.ndarray, taken: np.ndarray, target: np.ndarray) -> None:
        """Lanes ``taken`` (warps, 32) go to ``target`` of each; the others of a path go on."""
        stays = self.mask[warps] & ~taken
        self.at[warps] += 1
        whole = taken.any(1) & ~stays.any(1)
        self.at[warps[whole]] = target[whole]
        for i in np.flatnonzero(taken.any(1) & stays.any(1)):
            warp = warps[i]
            self.rest[warp].ready.append(Path(int(target[i]), _bits(taken[i])))
            self.mask[warp] = stays[i]

    def end(self, warps: np.ndarray, lanes: np.ndarray) -> None:
        """Lanes end; who waits for them goes on without."""
        self.at[warps] += 1
        self.alive[warps] &= ~lanes
        self.mask[warps] &= ~lanes
        for i in np.flatnonzero(lanes.any(1)):
            warp = int(warps[i])
            rest = self.rest[warp]
            for name in list(rest.members):
                rest.members[name] &= ~_bits(lanes[i])
            self._meet(warp)
            if not self.mask[warp].any():
                self._switch(warp)
        for block in set((warps // self.warps_of_block).tolist()):
            self._meet_block(block)

    def gather(self, warps: np.ndarray, name: str, lanes: np.ndarray) -> None:
        """``BSSY``: these lanes will meet."""
        self.at[warps] += 1
        for warp, mask in zip(warps.tolist(), lanes, strict=True):
            self.rest[warp].members[name] = _bits(mask)

    def leave(self, warps: np.ndarray, name: str, lanes: np.ndarray) -> None:
        """``BREAK``: these lanes will not."""
        self.at[warps] += 1
        for warp, mask in zip(warps.tolist(), lanes, strict=True):
            self.rest[warp].members[name] = self.rest[warp].members.get(name, 0) & ~_bits(mask)
            self._meet(warp)

    def meet(self, warps: np.ndarray, name: str) -> None:
        """``BSYNC``: a path waits for the lanes that are to meet."""
        for warp in warps.tolist():
            rest, lanes = self.rest[warp], _bits(self.mask[warp])
            if name not in rest.members:
                raise StuckError(f"nobody is to meet at {name}")
            if rest.members[name] & ~lanes == 0:
                self.at[warp] += 1
                continue
            rest.waiting[name, int(self.at[warp]) + 1] |= lanes
            self._switch(warp)
            self._meet(warp)

    def meet_all(self, warps: np.ndarray, wanted: np.ndarray) -> None:
        """``WARPSYNC``: a path waits for all wanted lanes (warps,) that live."""
        for warp, asked in zip(warps.tolist(), wanted.tolist(), strict=True):
            lanes, name = _bits(self.mask[warp]), f"warp {self.at[warp]}"
            self.rest[warp].members[name] = asked & _bits(self.alive[warp])
            self.meet(np.array([warp]), name)
            if lanes == _bits(self.mask[warp]):
                self.rest[warp].members.pop(name, None)

    def meet_block(self, warps: np.ndarray) -> None:
        """``BAR``: a path waits for all lanes of its block that live."""
        for warp in warps.tolist():
            self.rest[warp].barred.append(Path(int(self.at[warp]) + 1, _bits(self.mask[warp])))
            self._switch(warp)
        for block in set((warps // self.warps_of_block).tolist()):
            self._meet_block(block)

    def _meet_block(self, block: int) -> None:
        warps = range(block * self.warps_of_block, (block + 1) * self.warps_of_block)
        for warp in warps:
            there = 0
            for path in self.rest[warp].barred:
                there |= path.lanes
            if there != _bits(self.alive[warp]):
                return
        for warp in warps:
            self.rest[warp].ready += self.rest[warp].barred
            self.rest[warp].barred = []
            if not self.runs[warp]:
                self._switch(warp)

    def _meet(self, warp: int) -> None:
        rest = self.rest[warp]
        for (name, behind), lanes in list(rest.waiting.items()):
            if lanes and rest.members.get(name, 0) & ~lanes == 0:
                del rest.waiting[name, behind]
                rest.ready.append(Path(behind, lanes & _bits(self.alive[warp])))
                if not self.runs[warp]:
                    self._switch(warp)

    def _switch(self, warp: int) -> None:
        """Another path goes on, if there is one."""
        rest = self.rest[warp]
        self.runs[warp] = bool(rest.ready)
        self.mask[warp] = False
        if rest.ready:
            self.at[warp], lanes = rest.ready.pop()
            self.mask[warp] = _lanes(lanes)


def _bits(mask: np.ndarray) -> int:
    return int(np.packbits(mask, bitorder="little").view("<u4")[0])


def _lanes(bits: int) -> np.ndarray:
    return (bits >> np.arange(LANES) & 1).astype(bool)
