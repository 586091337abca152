"""Stage bytes: numbers of bytes of one stage put together into arrays over stages and plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.overlap import Floats
from cdmpp.steps.strategy import IntArray, RankBytes

AnyBytes = TypeVar("AnyBytes", StepMemory, LiveBytes, RankBytes)


def stacked(each: Sequence[AnyBytes]) -> AnyBytes:
    """Stack the numbers of several stages, or of several plans: each becomes an array with a further first axis."""
    return _each(np.array, each)


def joined(each: Sequence[AnyBytes]) -> AnyBytes:
    """Join the arrays of several groups of plans."""
    return _each(np.concatenate, each)


def taken(given: AnyBytes, rows: IntArray | int) -> AnyBytes:
    """Take rows of each array."""
    return _each(lambda values: values[0][rows], [given])


def between(low: AnyBytes, high: AnyBytes, share: Floats) -> AnyBytes:
    """Return bytes between those of two micro-batches, as arrays: they grow as the micro-batch does."""
    return _each(lambda ends: ends[0] + share * (ends[1] - ends[0]), [low, high])


def _each(made: Callable[[Any], Any], given: Sequence[AnyBytes]) -> AnyBytes:
    values: dict[str, Any] = {one.name: made([getattr(own, one.name) for own in given]) for one in fields(given[0])}
    return replace(given[0], **values)
