"""CompactAST: what the predictor sees of a tensor program (CDMPP section 4; DESIGN 3). No TVM here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH


@dataclass(frozen=True)
class CompactAST:
    """A compact AST lists leaves (one per store) and kernels (one per launch or top-level loop nest) of one program."""

    leaf_features: np.ndarray
    """(n_leaf, LEAF_WIDTH) float32, the computation vector of each store, pre-order. See ``layout.LEAF_NAMES``."""
    leaf_positions: np.ndarray
    """(n_leaf,) int32, pre-order index of the leaf among all tree nodes."""
    leaf_serial_positions: np.ndarray
    """(n_leaf,) int32, index in the serialised tree with closing markers (the reference's positional encoding)."""
    leaf_kernels: np.ndarray
    """(n_leaf,) int32, the kernel that holds the leaf."""
    kernel_features: np.ndarray
    """(n_kernel, KERNEL_WIDTH) float32, see ``layout.KERNEL_NAMES``."""
    target_kind: str
    """``cpu`` or ``gpu``."""
    code: np.ndarray | None = None
    """(CODE_WIDTH,) float32, what the compiler made of it (``cdmpp.machine_code``); None where nobody compiled it."""
    extractor_version: str = EXTRACTOR_VERSION

    def __post_init__(self) -> None:
        n_leaf, n_kernel = len(self.leaf_features), len(self.kernel_features)
        if n_leaf == 0:
            raise UnsupportedProgramError("the program has no store: nothing is computed, so it has no latency")
        for name, shape in (
            ("leaf_features", (n_leaf, LEAF_WIDTH)),
            ("leaf_positions", (n_leaf,)),
            ("leaf_serial_positions", (n_leaf,)),
            ("leaf_kernels", (n_leaf,)),
            ("kernel_features", (n_kernel, KERNEL_WIDTH)),
            ("code", (CODE_WIDTH,)),
        ):
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise UnsupportedProgramError(f"{name} has shape {array.shape}, expected {shape}")

    @property
    def n_leaf(self) -> int:
        """The program has so many stores."""
        return len(self.leaf_features)

    @property
    def n_kernel(self) -> int:
        """The program has so many launches or top-level loop nests."""
        return len(self.kernel_features)
