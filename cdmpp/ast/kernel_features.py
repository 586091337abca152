"""The kernel vector: what is said of one launch or top-level loop nest. See ``leaf_features``."""

from __future__ import annotations

from cdmpp.ast.leaf_features import CROWDED_MISSES, DECLARED, FOOTPRINT, MISSES
from cdmpp.features import names

KERNEL = (*DECLARED["kernel"], FOOTPRINT)
"""Without the misses."""
KERNEL_FEATURES = (*KERNEL, *MISSES, *CROWDED_MISSES)
KERNEL_NAMES = names(KERNEL_FEATURES)
KERNEL_WIDTH = len(KERNEL_FEATURES)
