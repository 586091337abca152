"""Launches the cubins of a folder one after the other, through the driver alone: copied there as ``launch.py``."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

METRICS = (
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    *(f"smsp__inst_executed_pipe_{pipe}.sum" for pipe in ("fma", "alu", "xu", "lsu", "uniform")),
    *(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("sectors", "requests") for op in ("ld", "st")),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")),
)


class Driver:
    """The few calls of the CUDA driver that are needed."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: object) -> None:
        """Call it; ``RuntimeError``: the driver says no."""
        if code := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} failed with code {code}")

    def put(self, array: np.ndarray) -> ctypes.c_void_p:
        """Copy an array to the device."""
        place, size = ctypes.c_void_p(), ctypes.c_size_t(array.nbytes)
        self("cuMemAlloc_v2", ctypes.byref(place), size)
        self("cuMemcpyHtoD_v2", place, ctypes.c_void_p(array.ctypes.data), size)
        return place


def main() -> None:
    """Launch all, or name the metrics."""
    if "--metrics" in sys.argv:
        print(",".join(METRICS))
        return
    folder, driver = Path(__file__).parent, Driver()
    buffers: dict[str, dict[str, ctypes.c_void_p]] = {}
    for launch in json.loads((folder / "launches.json").read_text())["launches"]:
        number = launch["files"]
        if number not in buffers:
            with np.load(folder / f"{number}.npz") as arrays:
                buffers[number] = {name: driver.put(np.ascontiguousarray(arrays[name])) for name in arrays.files}
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuModuleLoadData", ctypes.byref(module), (folder / f"{number}.cubin").read_bytes())
        driver("cuModuleGetFunction", ctypes.byref(function), module, launch["kernel"].encode())
        places = [buffers[number][name] for name in launch["arguments"]]
        pointers = (ctypes.c_void_p * len(places))(*(ctypes.addressof(place) for place in places))
        driver("cuLaunchKernel", function, *launch["grid"], *launch["block"], launch["shared"], None, pointers, None)
        driver("cuCtxSynchronize")


if __name__ == "__main__":
    main()
