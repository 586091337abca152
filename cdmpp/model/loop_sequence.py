"""LoopSequence: the innermost loops of a leaf read one after the other, where the flat leaf vector holds them all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cdmpp.ast.layout import LEAF_NAMES, LOOP_NAMES, N_LOOPS

LOOPS = ("flat", "sequence")
"""How the loops around a leaf reach the encoder: as columns of its vector, or read in order by a recurrent network."""
_START = LEAF_NAMES.index(f"loop0_{LOOP_NAMES[0]}")
_END = _START + N_LOOPS * len(LOOP_NAMES)


class LoopSequence(nn.Module):
    """A gated recurrent unit from the outermost described loop in; what every loop says is read by the same weights."""

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.GRU(len(LOOP_NAMES), width, batch_first=True)

    def forward(self, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled leaf vectors (B, L, LEAF_WIDTH) -> those with the loops' columns silenced, (B, L, width) of the loops.

        A nest of fewer loops starts with empty ones; zero is the mean of a scaled column.
        """
        loops = leaves[..., _START:_END].unflatten(-1, (N_LOOPS, len(LOOP_NAMES))).flip(-2)
        _, last = self.read(loops.flatten(0, 1))
        rest = torch.cat([leaves[..., :_START], torch.zeros_like(leaves[..., _START:_END]), leaves[..., _END:]], -1)
        return rest, last[0].unflatten(0, leaves.shape[:2])
