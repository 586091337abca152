"""The most bytes that a run on this CPU holds at a time, by PyTorch's profiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch


def most_held(run: Callable[[], None]) -> int:
    """Bytes above those before it; it runs once before it is looked at."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    moves = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(event.nbytes() for event in sorted(moves, key=lambda event: event.start_ns())))
