"""Knots of a cost that is asked for at many sizes: lines through them stand for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CLOSE = 1e-3
"""Share by which a line may be off halfway between two knots."""
_OCTAVES = 50


def cost_curve(seconds: Callable[[int], float]) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) rising sizes in bytes and (n,) seconds, such that lines through them are ``CLOSE`` to ``seconds``.

    Costs are lines between few sizes, where another algorithm or the next measured size begins: the halfway point of
    two knots tells whether there is such a size between them.
    """
    found = {size: seconds(size) for size in (1, *(2**octave for octave in range(4, _OCTAVES)))}
    sizes = list(found)
    open_pieces = list(zip(sizes, sizes[1:], strict=False))
    while open_pieces:
        low, high = open_pieces.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        truth = seconds(middle)
        line = found[low] + (found[high] - found[low]) * (middle - low) / (high - low)
        if abs(line - truth) > CLOSE * truth:
            found[middle] = truth
            open_pieces += [(low, middle), (middle, high)]
    knots = np.array(sorted(found))
    return knots.astype(np.float64), np.array([found[int(size)] for size in knots])
