"""Random calls with one size doubled: how many a model of framework operators answers as over 10 % faster.

python -m benchmarks.library_doubling MODEL COUNT DEVICE [DEVICE ...] draws COUNT calls as ``cdmpp data measure`` does,
and doubles each of their sizes that stays as aligned as it was.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np

import cdmpp
from cdmpp import devices
from cdmpp.measure.torch_plan import CallLimits, operator_plan
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import ALIGNMENTS

FASTER = 0.9
_CALL_MS = 50.0
_ALIGNED = ("inner", "cols", "in_channels", "out_channels")


def doubled_pairs(device: str, count: int, seed: int = 0) -> list[tuple[EagerOperator, EagerOperator, str]]:
    """Return calls, each with one of its sizes doubled, and the name of that size."""
    limits, found = CallLimits.of(devices.get(device), _CALL_MS, None), []
    for one in operator_plan(limits, count, seed):
        if one.sizes.get("groups", 1) > 1:
            continue
        for size in set(one.kind.sizes) - {"kernel"}:
            if size not in _ALIGNED or one[size] % max(ALIGNMENTS) == 0:
                found.append((one, EagerOperator(one.name, {**one.sizes, size: 2 * one[size]}, one.dtype), size))
    return found


def ratios(predictor: Any, device: str, count: int) -> dict[tuple[str, str], np.ndarray]:
    """(class, size) -> the time of doubled calls over that of the calls."""
    pairs = doubled_pairs(device, count)
    before, after = (
        predictor.predict([pair[place] for pair in pairs], device=device).latency_s.tolist() for place in (0, 1)
    )
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (one, _, size), of_one, of_doubled in zip(pairs, before, after, strict=True):
        found[one.kind.op_class, size].append(of_doubled / of_one)
    return {key: np.array(values) for key, values in found.items()}


def main(model: str, count: str, *names: str) -> None:
    """Print a line a device: all doublings, then those of which any is faster."""
    predictor = cdmpp.load_model(model)
    for device in names:
        found = ratios(predictor, device, int(count))
        every = np.concatenate([*found.values()])
        parts = [
            f"{op_class} {size} {100 * np.mean(values < FASTER):.1f} % of {len(values)} (least {values.min():.2f})"
            for (op_class, size), values in sorted(found.items())
            if (values < FASTER).any()
        ]
        print(f"{device}: {100 * np.mean(every < FASTER):.2f} % of {len(every)}; {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
