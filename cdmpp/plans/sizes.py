"""Sizes of messages in bytes, as a search tries them."""

from __future__ import annotations

MIB = 2**20
MOST_BYTES = 2**50
"""The most that one bucket or part may have."""
_LEAST_TRIED, _MOST_TRIED = 2**18, 2**30


def sizes(gradient_bytes: int) -> tuple[int, ...]:
    """List powers of two from 256 KiB up to the first that holds all gradients."""
    found = [_LEAST_TRIED]
    while found[-1] < min(gradient_bytes, _MOST_TRIED):
        found.append(2 * found[-1])
    return tuple(found)


def mib(n_bytes: int) -> str:
    """Write ``1572864`` as ``1.5``."""
    return f"{n_bytes / MIB:g}"
