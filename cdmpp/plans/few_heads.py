"""FewHeads: the rule of frameworks for more ranks of tensor parallelism than heads of keys and values."""

from __future__ import annotations

FEW_HEADS = (
    "PyTorch, nanotron and Megatron-core before 0.16 refuse fewer heads of keys and values than ranks; from 0.16 "
    "on all ranks gather queries, keys and values, which is not planned"
)
"""It is the reason why so many ranks are refused."""


def few_heads(heads: int, ranks: int) -> str:
    """Return the rule where ``ranks`` are a multiple of ``heads``, so that they could share them; else nothing."""
    return f"; {FEW_HEADS}" if ranks > heads and ranks % heads == 0 else ""
