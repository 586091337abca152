"""Lightning imports an installed torchvision; a CUDA wheel beside a CPU torch lacks two operators and would refuse.

Importing this file declares the two without an implementation, and only where that import fails.
"""

from __future__ import annotations

import importlib.util
import sys

if importlib.util.find_spec("torchvision"):
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, OSError):
        import torch

        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "DEF")  # the declaration lives as long as this object
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
