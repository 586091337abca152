"""The points of a store's loop space at which index expressions are evaluated."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.loop_nest import THREAD_TAG, Loop

WARP = 32
N_RANDOM = 64
_MASK = 0xFFFFFFFF


def scramble(sample: int, loop: int) -> int:
    """A fixed 32-bit hash of (sample, loop): the same points on every machine."""
    h = (((sample + 1) * 2654435761) ^ ((loop + 1) * 2246822519)) & _MASK
    h = ((h ^ (h >> 15)) * 2246822519) & _MASK
    return h ^ (h >> 13)


class Points:
    """Point 0 is the first iteration; then one step along each loop; the end of each loop; the lanes of the first
    warp; pseudo-random iterations. ``env`` maps a loop variable's handle to its value at every point.
    """

    def __init__(self, loops: list[Loop]) -> None:
        n = len(loops)
        threads = sorted((loop for loop in loops if loop.tag == THREAD_TAG), key=lambda loop: loop.axis)
        n_threads = 1
        for loop in threads:
            n_threads *= loop.extent
        self.n_loops = n
        self.n_lanes = min(WARP, n_threads)
        self.lane0 = 1 + 2 * n
        self.random0 = self.lane0 + WARP
        self.count = self.random0 + N_RANDOM
        self.env: dict[int, np.ndarray] = {}
        for i, loop in enumerate(loops):
            values = np.full(self.count, loop.start, np.int64)
            if loop.extent > 1:
                values[1 + i] = loop.start + 1
                values[1 + n + i] = loop.start + loop.extent - 1
            values[self.random0 :] = [loop.start + scramble(s, i) % loop.extent for s in range(N_RANDOM)]
            self.env[loop.handle] = values
        stride = 1
        for loop in threads:
            lanes = np.arange(WARP)
            self.env[loop.handle][self.lane0 : self.random0] = loop.start + (lanes // stride) % loop.extent
            stride *= loop.extent

    @property
    def lanes(self) -> slice:
        return slice(self.lane0, self.lane0 + self.n_lanes)

    @property
    def random(self) -> slice:
        return slice(self.random0, self.count)
