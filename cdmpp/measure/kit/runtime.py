"""The device's side of a kit: TVM's small runtime through ``tvm_ffi`` and ctypes. Runs in a worker process.

Needs Python, numpy and tvm_ffi; TVM's compiler is not there.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.measure import protocol
from cdmpp.measure.timing import make_inputs

_LIMIT_ZERO_ITERATIONS = 100
_kept: dict[str, Any] = {}
_callbacks: list[Any] = []


def load(libraries: Sequence[str], cubins: str | None) -> None:
    """Load TVM's runtime ``libraries`` in this order; ``cubins``: JSON file, SHA-256 of a CUDA source -> cubin."""
    import tvm_ffi

    for library in libraries:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    if cubins is None:
        return
    table = {key: Path(cubins).parent / name for key, name in json.loads(Path(cubins).read_text()).items()}

    def compiled(source: str) -> bytes:
        return table[hashlib.sha256(source.encode()).hexdigest()].read_bytes()

    _callbacks.append(compiled)  # the runtime asks it for machine code where a module is loaded
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


def guarded(action: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """``action(request)``; an error on a GPU asks for a new process, because the context may be lost."""
    try:
        return action(request)
    except Exception as error:  # noqa: BLE001 - the runtime raises many kinds
        message = f"{type(error).__name__}: {str(error)[-500:]}"
        return {"cause": "run error", "message": message, "restart": request["device"] != "cpu"}


def time_library(request: dict[str, Any]) -> dict[str, Any]:
    """One visit: ``{"samples": seconds a run per repeat}``, or ``{"cause": "too slow", "run_s": ...}``."""
    import tvm_ffi

    rule = protocol.CPU if request["device"] == "cpu" else protocol.GPU
    module = tvm_ffi.load_module(request["path"])
    tensors = _tensors(request["arguments"], request["device"])
    run_s = _warm_up(module, request, tensors)
    repeats = rule.repeats_for(run_s)
    if not repeats:
        return {"cause": "too slow", "run_s": run_s}
    return {"samples": _evaluate(module, request, tensors, repeats, rule.repeat_ms)}


def check_library(request: dict[str, Any]) -> dict[str, Any]:
    """Run once and compare the last argument with ``expected``: ``{"error": ...}``, nan where something is not finite.

    The error is the largest absolute deviation over the largest absolute value, so that zeros do no harm.
    """
    import tvm_ffi

    module = tvm_ffi.load_module(request["path"])
    expected = np.load(request["expected"], allow_pickle=False).astype(np.float64)
    tensors = _tensors(request["arguments"], request["device"])
    module[request["symbol"]](*tensors)
    shape, dtype = request["arguments"][-1]
    found = np.zeros(tuple(shape), dtype)
    _function("runtime.TVMTensorCopyToBytes")(tensors[-1], ctypes.c_void_p(found.ctypes.data), found.nbytes)
    deviation = np.abs(found.astype(np.float64) - expected).max(initial=0.0)
    return {"error": float(deviation / max(float(np.abs(expected).max(initial=0.0)), 1e-30))}


def _warm_up(module: Any, request: dict[str, Any], tensors: Sequence[Any]) -> float:
    if request["device"] == "cpu":  # not the evaluator, which would run a slow program twice
        begin = time.perf_counter()
        module[request["symbol"]](*tensors)
        return time.perf_counter() - begin
    _evaluate(module, request, tensors, 1, 0)  # loads the kernels
    return _evaluate(module, request, tensors, 1, 0)[0]


def _evaluate(
    module: Any, request: dict[str, Any], tensors: Sequence[Any], repeats: int, repeat_ms: int
) -> list[float]:
    import tvm_ffi

    device = tvm_ffi.device(request["device"], 0)
    timer = _function("runtime.RPCTimeEvaluator")(
        module, request["symbol"], device.dlpack_device_type(), 0, 1, repeats, repeat_ms, _LIMIT_ZERO_ITERATIONS,
        0, 1, request["flush_bytes"], "",
    )  # fmt: skip
    packed = bytes(timer(*tensors))
    return list(struct.unpack(f"{len(packed) // 8}d", packed))


def _tensors(arguments: Sequence[Sequence[Any]], device: str) -> list[Any]:
    """Aligned tensors of fixed content; those of the last request are used again where it asked for the same."""
    key = repr((arguments, device))
    if _kept.get("key") != key:
        _kept.clear()
        _kept["key"], _kept["tensors"] = key, [_tensor(array, device) for array in make_inputs(arguments)]
    return _kept["tensors"]


def _tensor(array: np.ndarray, device: str) -> Any:
    import tvm_ffi

    allocate, copy = _function("runtime.TVMTensorAllocWithScope"), _function("runtime.TVMTensorCopyFromBytes")
    tensor = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), tvm_ffi.device(device, 0), None)
    array = np.ascontiguousarray(array)
    copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return tensor


@cache
def _function(name: str) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func(name)
