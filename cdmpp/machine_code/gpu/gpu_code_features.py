"""The code vector of a GPU program: what its kernels execute, and how long a multiprocessor takes.

Amounts are of one multiprocessor for its share of the grid, all kernels together; what only one kernel has is of the
one that takes longest. Whatever changes a meaning raises ``GPU_CODE_VERSION``.
"""

from __future__ import annotations

from pathlib import Path

from cdmpp.features import Feature, names, prefixed, read_features
from cdmpp.machine_code.gpu.sass_fields import CLASSES

GPU_CODE_VERSION = "gpu-4"
_DECLARED = read_features(Path(__file__).with_suffix(".json"))
GPU_CYCLES = _DECLARED["cycles"]
"""Simulated, and what each resource by itself would take."""
GPU_CODE_FEATURES = (
    Feature("kernels", "kernels", "of the program"),
    *prefixed("n", tuple(Feature(name, "instructions", name.replace("_", " ")) for name in CLASSES)),
    *prefixed("cycles", GPU_CYCLES),
    *prefixed("longest", _DECLARED["longest"], "longest kernel: "),
)
"""All but shares and flags are stored as log2(1 + x)."""
GPU_CODE_NAMES = names(GPU_CODE_FEATURES)
