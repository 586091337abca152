"""Shortage: what most of the memory of a plan that does not fit is, and what would make it less."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.plan import Plan
from cdmpp.units import quantity

_DIVIDED = (
    "ranks that divide it (fsdp), stages that hold a part each (pipeline), or the memory of the host (fsdp with "
    "--offload parameters)"
)
REMEDIES: Mapping[str, str] = {
    "parameters": _DIVIDED,
    "gradients": _DIVIDED,
    "optimizer": "ranks that divide it (zero1, fsdp), the memory of the host (fsdp with --offload parameters), or an "
    "optimizer with fewer states (sgd)",
    "buffers": "a model with smaller buffers",
    "inputs": "a smaller batch",
    "activations": "inputs that are smaller or divided among ranks",
    "communication": "smaller buckets, or fewer micro-batches of a pipeline",
    "workspace": "ranks that divide the update (zero1, fsdp)",
    "rounding": "fewer and larger tensors",
    "context": "a device with more memory",
    "communicators": "fewer degrees of parallelism, or smaller buffers (NCCL_BUFFSIZE)",
}
"""Part of ``MemoryParts`` -> what makes it smaller."""
_WORDS: Mapping[str, str] = {
    "optimizer": "optimizer states",
    "communication": "buffers of communication",
    "workspace": "workspace of the update",
    "rounding": "blocks of the allocator",
    "context": "context of the framework on the GPU",
    "communicators": "buffers of the library of collectives",
}
"""Part -> its name for a reader, where that is another one."""
_MOST = 3


def shortage(parts: MemoryParts, plan: Plan, micro_batch: int | None = None) -> str:
    """Say which parts hold most, by name and size, and what the plan leaves that makes the largest one smaller.

    ``micro_batch``: examples of one forward pass; None: unknown.
    """
    told = [f"{_WORDS.get(name, name)} {quantity(size, 'B')}" for name, size in parts.by_size.items()][:_MOST]
    left = [REMEDIES[parts.largest]]
    if parts.largest == "activations":
        left = [
            *(["fewer examples at a time"] if micro_batch != 1 else []),
            *(["blocks that are recomputed"] if not plan.recompute else []),
            *(["--offload activations"] if not plan.recompute and "activations" not in plan.offload else []),
            *left,
        ]
    most = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    return f"most of it: {most}; what would help: {', '.join(left)}"
