"""Work-arounds for the libraries training stands on."""

from __future__ import annotations

import importlib.util
import sys

_kept: list[object] = []


def make_torchvision_importable() -> None:
    """Lightning imports an installed torchvision; a CUDA wheel beside a CPU torch lacks two operators and would refuse.

    Declares the two without an implementation, and only where the import fails. Does nothing without torchvision.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, OSError):
        import torch

        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)  # the declaration lives as long as this object


make_torchvision_importable()
