"""Declares the two operators that an installed torchvision of a CUDA wheel misses beside a CPU torch."""

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
