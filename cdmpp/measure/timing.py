"""Times one built program in this process: run in a worker only, because a bad program takes its process along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cdmpp.measure import protocol

FLAG_TYPES = ("bool", "int8", "uint8")
"""Inputs of these types are masks; indices come in 32 or 64 bits."""
_kept: dict[str, Any] = {}


def time_library(path: str, arguments: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """One visit: ``{"samples": seconds a run per repeat}``, or ``{"cause": "too slow", "run_s": ...}``."""
    import tvm

    return time_module(tvm.runtime.load_module(path), tensors_for(arguments), tvm.cpu())


def time_module(module: Any, tensors: Sequence[Any], device: Any) -> dict[str, Any]:
    """The same for a loaded module and tensors on ``device``, here or at the other end of an RPC session."""
    run = module["main"]
    # Not the time evaluator, which would add a run of its own before each run it times.
    begin = time.perf_counter()
    run(*tensors)
    device.sync()
    run_s = time.perf_counter() - begin
    repeats = protocol.CPU.repeats_for(run_s)
    if not repeats:
        return {"cause": "too slow", "run_s": run_s}
    timer = module.time_evaluator("main", device, number=1, repeat=repeats, min_repeat_ms=protocol.CPU.repeat_ms)
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
    """Inputs that any operator accepts: floats in [0.1, 1), flags that are set, integers that index every axis around.

    Zeros and denormals would let some kernels run faster or slower than real data does; an index must stay below the
    size of whatever axis it is used on, so it stays below the smallest of them. Flags are booleans and bytes, as the
    masks of attention are after lowering: one that is not set would leave out the work that real inputs ask for.
    """
    random = np.random.default_rng(0)
    sizes = [extent for shape, dtype in arguments if len(shape) > 1 and dtype.startswith("float") for extent in shape]
    bound = max(1, min(sizes, default=1))
    return [_fill(tuple(shape), dtype, bound, random) for shape, dtype in arguments]


def _fill(shape: tuple[int, ...], dtype: str, bound: int, random: np.random.Generator) -> np.ndarray:
    if dtype in FLAG_TYPES:
        return np.ones(shape, dtype)
    if "int" in dtype:
        return random.integers(0, bound, shape).astype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    return np.resize(_block(dtype), size).reshape(shape)


@lru_cache(maxsize=8)
def _block(dtype: str) -> np.ndarray:
    """Numbers that are repeated: drawing a hundred million would take longer than the measurement."""
    return np.random.default_rng(0).uniform(0.1, 1.0, 65_521).astype(dtype)
