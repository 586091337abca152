"""What a measurement ran on: software versions and the host's processor."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path


def versions() -> str:
    """JSON of the versions that a latency may depend on."""
    import tvm

    versions_of = {"python": platform.python_version(), "kernel": platform.release(), "tvm": tvm.__version__}
    versions_of["tvm-ffi"] = importlib.metadata.version("apache-tvm-ffi")
    version = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    if version is not None:
        versions_of["llvm"] = str(version())
    return json.dumps(versions_of, sort_keys=True)


def host() -> str:
    """Processor name and the number of processors this process may use."""
    names = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} processors"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
