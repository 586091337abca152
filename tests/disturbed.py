"""Tests of real time, which other work on the machine may disturb."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")


def best_of(tries: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A test fails where each of ``tries`` does: what is wrong is so each time, other work is not."""

    def decorated(test: Callable[P, None]) -> Callable[P, None]:
        @wraps(test)
        def run(*given: P.args, **named: P.kwargs) -> None:
            for _ in range(tries - 1):
                try:
                    return test(*given, **named)
                except AssertionError:
                    pass
            return test(*given, **named)

        return run

    return decorated
