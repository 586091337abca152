"""Times one built program in this process: run in a worker only, because a bad program takes its process along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.measure import protocol

_kept: dict[str, Any] = {}


def time_library(path: str, arguments: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """One visit: ``{"samples": seconds a run per repeat}``, or ``{"cause": "too slow", "run_s": ...}``."""
    import tvm

    module = tvm.runtime.load_module(path)
    tensors = tensors_for(arguments)
    device = tvm.cpu()
    first = module.time_evaluator("main", device, number=1, repeat=1)(*tensors).results[0]
    # The first run also faults pages in, so a second decides unless the program is hopeless.
    run_s = first if first > 2 * protocol.TOO_SLOW_S or first < 0.001 else _run_again(module, device, tensors)
    repeats = protocol.repeats_for(run_s)
    if not repeats:
        return {"cause": "too slow", "run_s": run_s}
    timer = module.time_evaluator("main", device, number=1, repeat=repeats, min_repeat_ms=protocol.REPEAT_MS)
    return {"samples": [float(value) for value in timer(*tensors).results]}


def tensors_for(arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """Aligned tensors of fixed content; those of the last request are used again where it asked for the same."""
    import tvm

    key = repr(arguments)
    if _kept.get("key") != key:
        _kept.clear()
        _kept["key"], _kept["tensors"] = key, [tvm.runtime.tensor(array) for array in make_inputs(arguments)]
    return _kept["tensors"]


def make_inputs(arguments: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    """Inputs that any operator accepts: floats in [0.1, 1), booleans, and integers that index every axis around.

    Zeros and denormals would let some kernels run faster or slower than real data does; an index must stay below the
    size of whatever axis it is used on, so it stays below the smallest of them.
    """
    random = np.random.default_rng(0)
    sizes = [extent for shape, dtype in arguments if len(shape) > 1 and dtype.startswith("float") for extent in shape]
    bound = max(1, min(sizes, default=1))
    return [_fill(tuple(shape), dtype, bound, random) for shape, dtype in arguments]


def _fill(shape: tuple[int, ...], dtype: str, bound: int, random: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return random.integers(0, bound, shape).astype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    # A block repeated: drawing a hundred million numbers would take longer than the measurement.
    block = random.uniform(0.1, 1.0, min(size, 1 << 20)).astype(dtype)
    return np.resize(block, size).reshape(shape)


def _run_again(module: Any, device: Any, tensors: list[Any]) -> float:
    return float(module.time_evaluator("main", device, number=1, repeat=1)(*tensors).results[0])
