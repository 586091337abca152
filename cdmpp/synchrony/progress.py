"""Progress: what a job has done by some time, and a log of it that stays short."""

from __future__ import annotations

from typing import NamedTuple

from cdmpp.platform.limits import numbers

STALENESS_PENALTY = numbers(0, 1e3)
"""By how much a stale update may count less."""


class Progress(NamedTuple):
    """What has moved the parameters by ``seconds``."""

    seconds: float
    """Since the start of the job."""
    samples: int
    """Samples of all commits."""
    weighted_samples: float
    """The same, each as often as its update counts: by its weight and by the servers' velocity, and less by its
    staleness where a replay was given a penalty."""
    commits: int
    staleness: float
    """Mean staleness of the commits; 0 without any."""


class ProgressLog:
    """It keeps every commit at first, and then every second, fourth and so on: at most ``most`` points."""

    def __init__(self, most: int = 1024) -> None:
        self._most, self._stride = most, 1
        self._points = [Progress(0.0, 0, 0.0, 0, 0.0)]

    def wants(self, commits: int) -> bool:
        """Return True for a number of commits at which it takes the progress."""
        return not commits % self._stride

    def add(self, now: Progress) -> None:
        """Take the progress at a commit."""
        self._points.append(now)
        if len(self._points) > self._most:
            self._stride *= 2
            self._points = [one for one in self._points if one.commits % self._stride == 0]

    @property
    def points(self) -> tuple[Progress, ...]:
        """They are in the order of time; the first is the start."""
        return tuple(self._points)
