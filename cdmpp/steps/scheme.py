"""Scheme: how ranks share the work of a training step, by name."""

from __future__ import annotations

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError
from cdmpp.steps.data_parallel import DataParallel
from cdmpp.steps.parameter_server import ParameterServer
from cdmpp.steps.sharded import Sharded

Scheme = DataParallel | Sharded | ParameterServer
SCHEMES = ("ddp", "fsdp", "ps")
_MOST_MIB = 2**30


def check_scheme(scheme: Scheme, ranks: int) -> None:
    """``CdmppError`` where it cannot be on so many ranks."""
    if isinstance(scheme, ParameterServer):
        scheme.servers_on(ranks)


def scheme_of(
    name: str, backend: str, bucket_mb: float | None = None, servers: int | None = None, overlap: bool = True
) -> Scheme:
    """By name; ``CdmppError`` where there is none, or a setting of another one is given.

    Args:
        name: one of ``SCHEMES``.
        backend: of collectives. On gloo PyTorch computes nothing while fsdp exchanges.
        bucket_mb: MiB of a bucket of ddp; None: PyTorch's 25, the first of 1.
        servers: of ps; None: as many as ranks.
        overlap: whether exchanges run beside the backward pass.
    """
    if name not in SCHEMES:
        raise CdmppError(f"unknown scheme {name!r}; {nearest(name, SCHEMES)}")
    for what, value, own in (("bucket_mb", bucket_mb, "ddp"), ("servers", servers, "ps")):
        if value is not None and name != own:
            raise CdmppError(f"{what} {value} goes with scheme {own}, given {name}: leave it out")
    if bucket_mb is not None and not 2**-20 <= bucket_mb <= _MOST_MIB:
        raise CdmppError(f"bucket_mb is {bucket_mb:g}: expected MiB from one byte, 1e-6, to {_MOST_MIB:,}")
    if name == "ddp":
        return DataParallel(None if bucket_mb is None else int(bucket_mb * 2**20), overlap)
    return Sharded(overlap and backend != "gloo") if name == "fsdp" else ParameterServer(servers, overlap=overlap)
