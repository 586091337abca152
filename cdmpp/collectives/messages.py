"""Timed messages: a curve for a link that no datasheet describes, and collectives made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.curve import Curve
from cdmpp.errors import DataError
from cdmpp.platform.content import content_of

_COLUMNS = ("bytes", "seconds")


def read_messages(file: Path | str, backend: str = "nccl") -> Curve:
    """Read what messages between two ranks took: a CSV file with ``bytes`` and ``seconds``, of two sizes or more.

    Raises:
        DataError: a file that cannot be read, or rows that are no such curve.
    """
    file = Path(file)
    try:
        rows = list(csv.DictReader(io.StringIO(content_of(file).decode("utf-8-sig")), strict=True))
        found = sorted((float(row["bytes"]), float(row["seconds"])) for row in rows)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"cannot read {file}: expected a line {','.join(_COLUMNS)}, then numbers ({error})") from error
    sizes, seconds = np.array(found, np.float64).reshape(-1, 2).T
    return Curve(str(file), None, backend, "send_recv", 2, 1, sizes, seconds)


def ring_of(curve: Curve) -> Callable[[Collective], CollectiveEstimate]:
    """Return the cost of collectives around rings whose messages take what a curve says.

    All ranks can send at the same time. Each step of a ring takes as long as one message of its bytes, so that sizes at
    which a protocol changes count. Beyond the largest size the last two say the bandwidth.
    """

    @cache
    def cost(collective: Collective) -> CollectiveEstimate:
        steps, source = collective.steps, f"timed messages of {curve.system}"
        if not steps:
            return CollectiveEstimate(0.0, 0.0, 0.0, source)
        part = collective.traffic_bytes / steps
        outside = curve.octaves_outside(part)
        told = f"a message has {part:,.0f} bytes, {2**outside:.3g} times beyond those that were timed"
        flags = (told,) if outside > 1 else ()
        found = float(steps * curve.at(part))
        return CollectiveEstimate(found, found, found, source, flags)

    return cost
