"""FitSettings: what a user may set of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cdmpp.platform.limits import SEED, Limits, check_fields, numbers

SEARCHED_FROM_S = 0.5
"""Budget below which known terms are fitted and no form is searched."""


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit."""

    LIMITS: ClassVar = {
        "seed": SEED,
        "budget_s": numbers(0, 1e5, "seconds", above=True),
        "most_terms": Limits(1, 12, "terms"),
        "resamples": Limits(2, 1000, "fits"),
    }

    seed: int = 0
    """The seed of the search and of the bootstrap; the same seed gives the same answer."""
    budget_s: float = 20.0
    """About how long a fit may take. It is translated into a number of evaluations, so that answers do not depend on
    the speed of the machine."""
    most_terms: int = 6
    """Terms of an expression at most."""
    resamples: int = 40
    """Fits to resampled runs, for intervals."""

    def __post_init__(self) -> None:
        check_fields(self, "fit.")
