"""Kinds of traced ops, by the names that PyTorch gives them."""

from __future__ import annotations

from cdmpp.steps.step_graph import BOOKKEEPING, COPY, LAUNCH

_UPDATES = frozenset(
    f"aten::{name}"
    for name in (
        "add", "add_", "mul", "mul_", "sub_", "div", "div_", "sqrt", "lerp_", "addcmul_", "addcdiv_", "neg", "pow",
    )
)  # fmt: skip
"""Operators that the updates of SGD, Adam and AdamW call for each parameter."""


def kind_of_op(name: str, phase: str) -> str:
    """Return ``LAUNCH`` or ``COPY`` of a bucket, ``BOOKKEEPING`` of the update, or nothing."""
    if name.startswith("c10d::allreduce"):
        return LAUNCH
    if name.endswith("copy_bucket_to_grad"):
        return COPY
    return BOOKKEEPING if phase == "update" and name not in _UPDATES else ""
