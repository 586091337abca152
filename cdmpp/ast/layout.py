"""Names and order of the numbers in a compact AST; any change of meaning bumps ``EXTRACTOR_VERSION``."""

from __future__ import annotations

EXTRACTOR_VERSION = "1"
LEAF_NAMES: tuple[str, ...] = tuple(f"leaf_{i}" for i in range(8))
KERNEL_NAMES: tuple[str, ...] = tuple(f"kernel_{i}" for i in range(8))
LEAF_WIDTH = len(LEAF_NAMES)
KERNEL_WIDTH = len(KERNEL_NAMES)
