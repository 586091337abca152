"""A compact AST as text that a person can read and a test can compare."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_NAMES, LEAF_NAMES

_PLAIN = ("_flag", "_fraction", "_share")


def decode(name: str, value: float) -> float:
    """The physical quantity behind a stored feature: undoes slog except on flags, fractions and shares."""
    if name.endswith(_PLAIN):
        return float(value)
    return float(np.sign(value) * (2.0 ** abs(float(value)) - 1.0))


def render(ast: CompactAST) -> str:
    """Kernels and leaves in pre-order, every non-zero feature in its own unit, four significant digits."""
    size = f"{ast.n_kernel} kernels, {ast.n_leaf} leaves"
    lines = [f"{ast.target_kind} program: {size} (extractor {ast.extractor_version})"]
    for k in range(ast.n_kernel):
        lines.append(f"kernel {k}")
        lines += _features(KERNEL_NAMES, ast.kernel_features[k])
        for i in np.flatnonzero(ast.leaf_kernels == k):
            lines.append(f"  leaf {i} at {ast.leaf_positions[i]} (serial {ast.leaf_serial_positions[i]})")
            lines += ["  " + line for line in _features(LEAF_NAMES, ast.leaf_features[i])]
    return "\n".join(lines) + "\n"


def _features(names: tuple[str, ...], values: np.ndarray) -> list[str]:
    return [f"  {name} = {decode(name, v):.4g}" for name, v in zip(names, values, strict=True) if v != 0]
