"""Software versions and the host's processor of a measurement. Measurement kits carry this file."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path


def versions() -> str:
    """Return the versions that a latency may depend on, as JSON."""
    import tvm

    versions_of = {"python": platform.python_version(), "kernel": platform.release(), "tvm": tvm.__version__}
    versions_of["tvm-ffi"] = importlib.metadata.version("apache-tvm-ffi")
    version = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    if version is not None:
        versions_of["llvm"] = str(version())
    return json.dumps(versions_of, sort_keys=True)


def torch_versions() -> str:
    """Return versions of the software that an operator of PyTorch's libraries runs on, as JSON."""
    import torch

    versions_of = {"python": platform.python_version(), "kernel": platform.release(), "torch": torch.__version__}
    versions_of["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available():
        found = {"cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": torch.backends.cudnn.version()}
        versions_of |= {name: str(version) for name, version in found.items() if version}
    return json.dumps(versions_of, sort_keys=True)


def processor() -> str:
    """Return the name that the first processor of this machine gives itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
