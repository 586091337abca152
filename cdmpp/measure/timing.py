"""Times one built program in this process: run in a worker only, because a bad program takes its process along.

Everything goes through TVM's small runtime, so that the same code times here, over RPC and in a kit, where Python has
numpy and tvm_ffi but no TVM.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import time
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.measure import protocol
from cdmpp.platform.workers import Reply, Request

FLAG_TYPES = ("bool", "int8", "uint8")
"""Inputs of these types are masks; indices come in 32 or 64 bits."""
_kept: dict[str, Any] = {}


def load_runtime(request: Request) -> Reply:
    """Load ``libraries`` of TVM's runtime in this order; ``cubins``: folder of cubins, named by hashes of sources."""
    import tvm_ffi

    for library in request["libraries"]:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

    def compiled(source: str) -> bytes:
        return (Path(request["cubins"]) / f"{hashlib.sha256(source.encode()).hexdigest()}.cubin").read_bytes()

    _kept["compiled"] = compiled  # the runtime asks it for machine code where a module is loaded
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)
    return {}


def time_library(request: Request) -> Reply:
    """Take a visit to ``path``, ``symbol`` with ``arguments`` on ``device``; replies as ``time_module``.

    With ``clock`` (a library of ``clock.build_clock``) the reply names the core's ``clock_mhz`` too.
    """
    import tvm_ffi

    module, device = tvm_ffi.load_module(request["path"]), tvm_ffi.device(request["device"], 0)
    tensors, rule = tensors_for(request["arguments"], request["device"]), protocol.rule_of(request["device"])
    reply = time_module(module, request["symbol"], tensors, device, rule)
    if (clock := request.get("clock")) and "samples" in reply:  # right after the runs: the clock that they had
        from cdmpp.measure.clock import running_mhz

        reply["clock_mhz"] = running_mhz(clock)
    return reply


def time_module(module: Any, symbol: str, tensors: Sequence[Any], device: Any, rule: protocol.Rule) -> Reply:
    """Take a visit to a loaded module, here or at the other end of an RPC session.

    Returns ``{"samples": seconds a run, one per repeat}``, or ``{"cause": "too slow", "run_s": ...}``.
    """

    def evaluate(repeats: int, repeat_ms: int) -> list[float]:
        timer = _runtime("RPCTimeEvaluator")(
            module, symbol, device.dlpack_device_type(), device.index, 1, repeats, repeat_ms, 100,
            0, 1, 0, "",
        )  # fmt: skip
        return list(struct.unpack(f"{repeats}d", bytes(timer(*tensors))))

    if rule is protocol.CPU:  # not the evaluator, which would run a slow program twice
        entry = module[symbol]  # over RPC a question of its own
        begin = time.perf_counter()
        entry(*tensors)
        run_s = time.perf_counter() - begin
    else:
        evaluate(1, 0)  # loads the kernels
        (run_s,) = evaluate(1, 0)
    repeats = rule.repeats_for(run_s)
    return {"samples": evaluate(repeats, rule.repeat_ms)} if repeats else {"cause": "too slow", "run_s": run_s}


def check_library(request: Request) -> Reply:
    """Run once and compare the last argument with ``expected`` (npy): ``error`` is largest deviation / value."""
    import tvm_ffi

    expected = np.load(request["expected"], allow_pickle=False).astype(np.float64)
    tensors = tensors_for(request["arguments"], request["device"])
    tvm_ffi.load_module(request["path"])[request["symbol"]](*tensors)
    shape, dtype = request["arguments"][-1]
    output = np.zeros(tuple(shape), dtype)
    _runtime("TVMTensorCopyToBytes")(tensors[-1], ctypes.c_void_p(output.ctypes.data), output.nbytes)
    deviation = np.abs(output.astype(np.float64) - expected).max(initial=0.0)
    return {"error": float(deviation / max(float(np.abs(expected).max(initial=0.0)), 1e-30))}


def tensors_for(arguments: Sequence[Sequence[Any]], device: str) -> list[Any]:
    """Return aligned tensors of fixed content; those of the last request are used again where it was the same."""
    key = repr((arguments, device))
    if _kept.get("key") != key:
        _kept.pop("tensors", None)
        _kept["key"], _kept["tensors"] = key, [_tensor(array, device) for array in make_inputs(arguments)]
    return _kept["tensors"]


def _tensor(array: np.ndarray, device: str) -> Any:
    import tvm_ffi

    shape, dtype = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype))
    tensor = _runtime("TVMTensorAllocWithScope")(shape, dtype, tvm_ffi.device(device, 0), None)
    array = np.ascontiguousarray(array)
    _runtime("TVMTensorCopyFromBytes")(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return tensor


@cache
def _runtime(name: str) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func(f"runtime.{name}")


def make_inputs(arguments: Sequence[Sequence[Any]]) -> list[np.ndarray]:
    """Make inputs that any operator accepts: floats in [0.1, 1), flags that are set, integers that index every axis.

    Zeros and denormals would run faster or slower than real data; a mask that is not set would leave out work.
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
    return np.resize(_block(dtype), int(np.prod(shape, dtype=np.int64))).reshape(shape)


@lru_cache(maxsize=8)
def _block(dtype: str) -> np.ndarray:
    """Numbers that are repeated: drawing a hundred million would take longer than the measurement."""
    return np.random.default_rng(0).uniform(0.1, 1.0, 65_521).astype(dtype)
