"""The most bytes of buffers that are alive at a time while kernels of one graph run in their order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdmpp.network.inductor.kernel import Kernel


def peak_bytes(
    kernels: Sequence[Kernel], given: Mapping[str, int], results: Collection[str], renamed: Mapping[str, str]
) -> int:
    """Return the most bytes alive: a buffer from the kernel that writes it to the last one that reads it.

    Inductor's code frees buffers there. It also writes some over those that it reads last, which is not counted.

    Args:
        kernels: in the order in which they run.
        given: name of an input that is freed after its last reader -> bytes: what the forward pass saved.
        results: names of buffers that live to the end.
        renamed: name of a buffer after a kernel wrote into it -> its name before.
    """

    def first(name: str) -> str:
        while name in renamed:
            name = renamed[name]
        return name

    written = {name: place for place, one in enumerate(kernels) for name, _ in one.writes}
    made: dict[int, dict[str, int]] = {}
    for place, one in enumerate(kernels):
        # What only names a buffer, such as a part of a result, is there from the kernel that it is of.
        sources = [written[name] for name in one.reads if name in written and not one.launches]
        made.setdefault(min(sources, default=place), {}).update(one.writes)
    ends = {first(name): place for place, one in enumerate(kernels) for name in (*one.reads, *dict(one.writes))}
    kept = {first(name) for name in results}
    alive: dict[str, int] = dict(given)
    peak = total = sum(alive.values())
    for place, kernel in enumerate(kernels):
        new = made.get(place, {})
        alive.update(new)
        total += sum(new.values())
        peak = max(peak, total)
        for name in {first(one) for one in (*kernel.reads, *dict(kernel.writes))}:
            if ends[name] == place and name not in kept:
                total -= alive.pop(name, 0)
    return peak
