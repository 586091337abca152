"""Speeds of fused attention that somebody measured: operations a second by kernel, head size and sequence length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from cdmpp.errors import DataError
from cdmpp.operators.attention import BACKENDS, backend_of_name, is_backward
from cdmpp.operators.operator import EagerOperator
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import Limits, fitting
from cdmpp.platform.paths import conf_folder

FOLDER = "attention"
"""Folder of ``conf`` with what was published (``published.yaml``) and what was measured (``*.jsonl``)."""
_SIZES, _SPEEDS, _FLAGS = Limits(1, 2**31), Limits(1e-3, 1e5, whole=False), Limits(0, 1)


class Series(NamedTuple):
    """One kernel on one device, of calls that differ in their sequences."""

    device: str
    backend: str
    halves: bool
    causal: bool
    is_backward: bool
    head: int


class Speed(NamedTuple):
    """Calls like this one reach so much."""

    tflops: float
    device: str
    """Device of which it is known."""
    is_measured: bool
    """False: published by others, with other versions and clocks."""


@dataclass(frozen=True)
class AttentionSpeeds:
    """These are all that are known."""

    published: Mapping[Series, Mapping[int, float]]
    """Sequence length -> TFLOP/s."""
    measured: Mapping[Series, Mapping[int, float]]

    def of(self, operator: EagerOperator, device: str) -> Speed | None:
        """Return the speed of calls like ``operator``: of ``device`` where it is known, else of another one.

        Between sequences and head sizes it is interpolated in logarithms; other sequences go on as the longest row of
        the kernel does. Where a mask is not among what is known, it costs what it does the other way.
        None: nobody published any of this kernel and type.
        """
        for table, is_measured in ((self.measured, True), (self.published, False)):
            own = [one for one in table if _same_kernel(one, operator)]
            places = dict.fromkeys(one.device for one in own)
            if not places or (is_measured and device not in places):
                continue
            place = device if device in places else next(iter(places))
            return Speed(_interpolated(table, operator, place), place, is_measured)
        return None


def _same_kernel(one: Series, operator: EagerOperator) -> bool:
    return one.backend == backend_of_name(operator.name) and one.halves == (operator.element_bytes == 2)


def _interpolated(table: Mapping[Series, Mapping[int, float]], operator: EagerOperator, device: str) -> float:
    causal, back = bool(operator["causal"]), is_backward(operator.name)
    sequence, head = operator["cols"], operator["inner"]
    own = [one for one in table if _same_kernel(one, operator) and one.device == device]
    longest = table[min(own, key=lambda one: (min(table[one]), -len(table[one])))]

    def at(causal: bool, back: bool) -> float | None:
        heads = {
            one.head: _along(table[one], sequence, longest if min(table[one]) > min(longest) else table[one])
            for one in own
            if (one.causal, one.is_backward) == (causal, back)
        }
        return _along(heads, head) if heads else None

    found, plain, forward = at(causal, back), at(False, back), at(causal, False)
    if found is not None:
        return found
    base = at(False, False)
    if plain is not None:  # the mask costs what it does forward
        return plain * (forward / base if forward and base else 1.0)
    return (forward or base or math.nan) * _backward_share(table, operator)


def _backward_share(table: Mapping[Series, Mapping[int, float]], operator: EagerOperator) -> float:
    """Speed of gradients over that of the forward pass, of the same kernel in any type, at the longest sequences."""
    best: dict[bool, float] = {}
    for one, speeds in table.items():
        if one.backend == backend_of_name(operator.name) and one.halves:
            best[one.is_backward] = max(best.get(one.is_backward, 0.0), *speeds.values())
    return best[True] / best[False] if len(best) == 2 and is_backward(operator.name) else 1.0


def _along(points: Mapping[int, float], at: int, beyond: Mapping[int, float] | None = None) -> float:
    """Interpolate in logarithms; outside ``points`` as ``beyond`` goes, where it is known there, else as at the end."""
    known = sorted(points)
    if not known[0] <= at <= known[-1]:
        end = known[0] if at < known[0] else known[-1]
        return points[end] * (_between(beyond, at) / _between(beyond, end) if beyond else 1.0)
    return _between(points, at)


def _between(points: Mapping[int, float], at: int) -> float:
    """Interpolate; below the first point along the first slope, beyond the last one as there."""
    known = sorted(points)
    if at >= known[-1] or len(known) == 1:
        return points[known[-1]]
    high = max(1, next(place for place, one in enumerate(known) if one >= at))
    low, above = known[high - 1], known[high]
    share = math.log(at / low) / math.log(above / low)
    return math.exp((1 - share) * math.log(points[low]) + share * math.log(points[above]))


@cache
def attention_speeds(folder: Path | None = None) -> AttentionSpeeds:
    """Read what is known; ``DataError`` names the file and the entry that cannot be read.

    Args:
        folder: with ``published.yaml`` and files of ``benchmarks.attention_gpu``; None: that of ``conf``.
    """
    folder = folder or conf_folder() / FOLDER
    measured: dict[Series, dict[int, list[float]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            series, sequence, tflops = _measured(line, f"{path}, line {number}")
            measured.setdefault(series, {}).setdefault(sequence, []).append(tflops)
    rows = read_yaml(folder / "published.yaml")["speeds"] if (folder / "published.yaml").exists() else []
    published = dict(_published(row, f"{folder / 'published.yaml'}, entry {n}") for n, row in enumerate(rows, 1))
    return AttentionSpeeds(
        published, {key: {at: median(all_of) for at, all_of in by.items()} for key, by in measured.items()}
    )


def _published(row: Mapping[str, Any], where: str) -> tuple[Series, dict[int, float]]:
    try:
        halves, causal, back = (
            bool(fitting(name, row[name], int, _FLAGS)) for name in ("halves", "causal", "backward")
        )
        head = fitting("head", row["head"], int, _SIZES)
        speeds = {
            fitting("sequence", at, int, _SIZES): fitting("TFLOP/s", float(value), float, _SPEEDS)
            for at, value in row["sequences"].items()
        }
        if row["backend"] not in BACKENDS or not speeds:
            raise DataError(f"backend {row['backend']!r}: one of {', '.join(BACKENDS)}, at one sequence or more")
        return Series(str(row["device"]), row["backend"], halves, causal, back, head), speeds
    except (KeyError, TypeError, AttributeError, DataError) as error:
        raise DataError(f"{where}: no speed of attention: {error}") from error


def _measured(line: str, where: str) -> tuple[Series, int, float]:
    """Read a line of ``benchmarks.attention_gpu``: an operator, a device and the seconds of its repeats."""
    try:
        row = json.loads(line)
        operator, seconds = EagerOperator.from_json(json.dumps(row["operator"])), row["seconds"]
        if not isinstance(seconds, Sequence) or not seconds or not all(0 < one < 1e3 for one in seconds):
            raise DataError(f"seconds {str(seconds)[:60]}: expected those of one repeat or more")
        tflops = operator.flops / median(seconds) / 1e12
        key = Series(
            str(row["device"]), backend_of_name(operator.name), operator.element_bytes == 2, bool(operator["causal"]),
            is_backward(operator.name), operator["inner"],
        )  # fmt: skip
        return key, operator["cols"], tflops
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: no measured attention: {error}") from error
