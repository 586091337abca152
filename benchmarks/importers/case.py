"""A small network with inputs, weights and the right results: what an importer of TVM is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One operator of one source with one setting."""

    source: str
    """``onnx`` or ``torch``."""
    name: str
    """Unique in its source."""
    operators: tuple[str, ...]
    """Names of its operators, of torch as it is exported and as it is decomposed."""
    setting: str
    """Attributes and shapes, for the page."""
    model: Any
    """``onnx.ModelProto``, or a ``torch.export.ExportedProgram`` that is decomposed."""
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    rtol: float = 1e-3
    atol: float = 1e-4
    parts: tuple[tuple[str, ...], ...] = ()
    """Operators of each network where several are one."""
    known: Any = None
    """Its ``Outcome``, where that is known before: from its export, or a network that it is a part of."""

    @property
    def key(self) -> str:
        """Source and name."""
        return f"{self.source}/{self.name}"
