"""Shapes and types that a network's source declares, compared with those that TVM's importer made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_ELEMENTS = 1 << 56
"""More than any machine can address; sizes not far beyond it overflow in TVM."""
ADVICE = "replace that operator in the model, or predict the network without the part that it belongs to"
_IN_SINGLE = (
    "TVM makes float32 of products of other types: give the network in float32 (dtype float16 is mixed precision), ask "
    f"for PyTorch's own kernels (runtime torch), or {ADVICE}"
)
_OTHER = f"The answer would be that of another network: {ADVICE}"


@dataclass(frozen=True)
class Declared:
    """A value has this shape and type in its source."""

    sizes: Sequence[int | None] | None
    """None: the rank is not known; None in it: that size is not."""
    dtype: str
    """Empty: not known."""

    def fault(self, value: Any) -> str:
        """Say how a Relax expression differs from this, and what to do; empty where nothing known differs."""
        from tvm import relax

        kind = getattr(value, "ty", None)
        if isinstance(kind, relax.ShapeType):  # the source has a vector of integers
            return "" if self._fits([kind.ndim]) else self._words([kind.ndim], "a shape")
        if not isinstance(kind, relax.TensorType):
            return ""
        sizes, dtype = sizes_of(kind), str(kind.dtype)
        if sizes is not None and None not in sizes and math.prod(map(int, filter(None, sizes))) > MOST_ELEMENTS:
            return f"has the shape {_text(sizes)}, which no machine can hold: give smaller sizes"
        other_type = bool(dtype and self.dtype and dtype != self.dtype)
        return self._words(sizes, dtype) if other_type or not self._fits(sizes) else ""

    def _fits(self, sizes: Sequence[int | None] | None) -> bool:
        if self.sizes is None or sizes is None:
            return True
        pairs = zip(sizes, self.sizes, strict=False)
        return len(sizes) == len(self.sizes) and all(a == b or None in (a, b) for a, b in pairs)

    def _words(self, sizes: Sequence[int | None] | None, dtype: str) -> str:
        advice = _IN_SINGLE if dtype == "float32" != self.dtype and self._fits(sizes) else _OTHER
        declared = f"{self.dtype} {_text(self.sizes)}"
        return f"is declared as {declared}, but TVM imports it as {dtype} {_text(sizes)}. {advice}"


def sizes_of(kind: Any) -> list[int | None] | None:
    """Return the sizes of a Relax tensor type; None: a size is no number, or the rank is not known."""
    if kind.shape is None or not hasattr(kind.shape, "values"):
        return None if kind.ndim < 0 else [None] * kind.ndim
    return [getattr(size, "value", None) for size in kind.shape.values]


def _text(sizes: Sequence[int | None] | None) -> str:
    return "[...]" if sizes is None else f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"
