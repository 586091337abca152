"""The points of a store's loop space at which index expressions are evaluated."""

from __future__ import annotations

import math

import numpy as np

from tests.reference.loop_nest import Loop, Tag

WARP = 32
N_RANDOM = 64
_MASK = 0xFFFFFFFF


def scramble(sample: int, loop: int) -> int:
    """A fixed 32-bit hash of (sample, loop): the same points on every machine."""
    h = (((sample + 1) * 2654435761) ^ ((loop + 1) * 2246822519)) & _MASK
    h = ((h ^ (h >> 15)) * 2246822519) & _MASK
    return h ^ (h >> 13)


class Points:
    """Where index expressions are evaluated; ``env`` maps a loop variable's handle to its value at every point.

    Point 0 is the first iteration; then come one step along each loop, the end of each loop, the lanes of the first
    warp and pseudo-random iterations.
    """

    def __init__(self, loops: list[Loop]) -> None:
        n = len(loops)
        threads = sorted((loop for loop in loops if loop.tag == Tag.THREAD), key=lambda loop: loop.axis)
        first_lane = 1 + 2 * n
        first_random = first_lane + WARP
        self.count = first_random + N_RANDOM
        self.lanes = slice(first_lane, first_lane + min(WARP, math.prod(loop.extent for loop in threads)))
        self.random = slice(first_random, self.count)
        self.env: dict[int, np.ndarray] = {}
        for i, loop in enumerate(loops):
            values = np.full(self.count, loop.start, np.int64)
            if loop.extent > 1:
                values[1 + i] = loop.start + 1
                values[1 + n + i] = loop.start + loop.extent - 1
            values[first_random:] = [loop.start + scramble(s, i) % loop.extent for s in range(N_RANDOM)]
            self.env[loop.handle] = values
        stride = 1
        for loop in threads:
            self.env[loop.handle][first_lane:first_random] = loop.start + (np.arange(WARP) // stride) % loop.extent
            stride *= loop.extent
