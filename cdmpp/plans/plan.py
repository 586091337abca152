"""Plan: everything about a distributed training step that may be set without changing the model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError, some
from cdmpp.steps.data_parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES, DataParallel
from cdmpp.steps.parameter_server import PART_BYTES, ParameterServer
from cdmpp.steps.scheme import SCHEMES, Scheme
from cdmpp.steps.sharded import Sharded
from cdmpp.units import quantity

DEFAULT_BUCKETS = (FIRST_BUCKET_BYTES, BUCKET_BYTES)
MOST_MICRO_STEPS = 1024
"""A replay holds the operations of each."""


@dataclass(frozen=True)
class Plan:
    """Settings of one job. As it is made, it is the framework's default of its scheme."""

    scheme: str = "ddp"
    """One of ``scheme.SCHEMES``."""
    bucket_bytes: tuple[int, ...] = DEFAULT_BUCKETS
    """Of ddp: a bucket is closed once it has so many; the last number holds for all that follow."""
    bucket_view: bool = False
    """Of ddp: gradients lie in their buckets, and are not copied back."""
    reshard: bool = True
    """Of fsdp: parameters are let go after the forward pass and gathered again for the backward pass."""
    servers: int | None = None
    """Of ps; None: one a rank."""
    part_bytes: int = PART_BYTES
    """Of ps: gradients are cut into parts of at most so many."""
    micro_steps: int = 1
    """Batches whose gradients are added up before ranks exchange them. More than one multiply the global batch."""
    recomputed: tuple[str, ...] = ()
    """Units whose forward pass runs again in the backward pass, so that nothing inside them is kept."""
    fused_update: bool = False
    """One kernel updates all parameters."""

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise CdmppError(f"unknown scheme {self.scheme!r}; {nearest(self.scheme, SCHEMES)}")
        if not self.bucket_bytes or min(self.bucket_bytes) < 1:
            raise CdmppError(f"buckets of {self.bucket_bytes} bytes: expected one number or more, each from 1 up")
        if not 1 <= self.micro_steps <= MOST_MICRO_STEPS:
            raise CdmppError(f"{self.micro_steps} micro-steps: expected 1 to {MOST_MICRO_STEPS:,}")

    def on(self, overlap: bool = True) -> Scheme:
        """What the replay takes."""
        if self.scheme == "ddp":
            return DataParallel(None if self.bucket_bytes == DEFAULT_BUCKETS else self.bucket_bytes, overlap)
        if self.scheme == "fsdp":
            return Sharded(overlap)
        return ParameterServer(self.servers, self.part_bytes, overlap=overlap)

    def differences(self, default: Plan) -> tuple[str, ...]:
        """What is set otherwise than in ``default``, for a reader."""
        return tuple(
            _told(field.name, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; ``Plan(**it)`` gives the plan again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def plan_of(told: dict[str, Any]) -> Plan:
    """What ``to_dict`` told, also by way of JSON."""
    lists = {key: tuple(value) for key, value in told.items() if isinstance(value, list)}
    return Plan(**{**told, **lists})


def mib(n_bytes: int) -> str:
    """``1572864`` -> ``1.5``."""
    return f"{n_bytes / 2**20:g}"


def _told(name: str, value: Any) -> str:
    if name == "bucket_bytes":
        first = f"first bucket {mib(value[0])} MiB, then " if len(value) > 1 else ""
        return f"{first}buckets of {mib(value[-1])} MiB"
    return {
        "scheme": f"scheme {value}",
        "bucket_view": "gradients lie in their buckets" if value else "gradients lie beside their buckets",
        "reshard": "parameters gathered again for the backward pass" if value else "parameters stay gathered",
        "servers": f"{value} servers",
        "part_bytes": f"parts of {quantity(value, 'B')}" if name == "part_bytes" else "",
        "micro_steps": f"{value} micro-steps an exchange",
        "recomputed": f"recomputed: {some(value, ', ', 4) or 'nothing'}" if name == "recomputed" else "",
        "fused_update": "one kernel updates all" if value else "a kernel updates each parameter",
    }[name]
