"""What stands behind the numbers of a vector."""

from __future__ import annotations

import math

from cdmpp.features import Feature


def quantity(feature: Feature, stored: float) -> float:
    """In the feature's unit."""
    return float(stored) if feature.plain else math.copysign(2.0 ** abs(float(stored)) - 1.0, stored)
