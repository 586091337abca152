"""FewHeads: the rule of frameworks for more ranks of tensor parallelism than heads of keys and values."""

from __future__ import annotations

FEW_HEADS = (
    "PyTorch, nanotron and Megatron-core before 0.16 refuse fewer heads of keys and values than ranks; from 0.16 "
    "on all ranks gather queries, keys and values, which is not planned"
)
"""It is the reason why so many ranks are refused."""


def few_heads(own: int, heads: int, ranks: int) -> str:
    """Return the rule where ``ranks`` are a multiple of ``own`` heads, so that they could share them; else nothing.

    Nor is there one where ``own`` are as many as the ``heads`` of queries, which no ranks share.
    """
    return f"; {FEW_HEADS}" if own < heads and ranks > own and ranks % own == 0 else ""
