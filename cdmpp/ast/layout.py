"""Version and widths of the numbers in a compact AST; ``leaf_features`` and ``kernel_features`` declare them."""

from __future__ import annotations

from cdmpp.ast.kernel_features import KERNEL_FEATURES, KERNEL_NAMES, KERNEL_WIDTH
from cdmpp.ast.leaf_features import LEAF_FEATURES, LEAF_NAMES, LEAF_WIDTH

__all__ = [
    "EAGER_FEATURES",
    "EXTRACTOR_VERSION",
    "FEATURES",
    "KERNEL_FEATURES",
    "KERNEL_NAMES",
    "KERNEL_WIDTH",
    "LEAF_FEATURES",
    "LEAF_NAMES",
    "LEAF_WIDTH",
]

EXTRACTOR_VERSION = "5"
"""Bumped whenever a declared number changes its meaning."""
EAGER_FEATURES = "library"
"""The word of stored models and data sets for framework operators, in ``FEATURES``."""
FEATURES = {"cdmpp": EXTRACTOR_VERSION, "ansor164": "ansor164-1", EAGER_FEATURES: f"library-3-{EXTRACTOR_VERSION}"}
"""Name -> version of every kind of leaf vector that models can be trained on. ``ansor164``: the 164 numbers of Ansor's
per-store extractor, imported from files; zeros fill the rest of the width, and its kernels say nothing. ``library``:
un-scheduled programs that a runtime serves with kernels of its own, and in place of code vectors what they are."""
