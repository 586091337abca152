"""SearchSpace: what may be set in a job, next to the settings of its parallel strategy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSpace:
    """The settings of a job that may be changed."""

    ranks: int
    """Number of ranks."""
    gradient_bytes: int
    """Bytes of all gradients."""
    modules: tuple[str, ...] = ()
    """Names of the modules that may be recomputed, in the order of the model."""
    copies_buckets: bool = False
    """Whether the job is known to copy gradients back from their buckets."""
    can_fuse_update: bool = False
    """Whether there are several updates, with pauses of the host between them, that one kernel can replace."""
    can_accumulate: bool = False
    """Whether gradients of several batches can be added up."""
