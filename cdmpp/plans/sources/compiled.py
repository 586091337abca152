"""CompiledSource: blocks that ``torch.compile`` makes one graph each, with linear layers in float8 where asked for.

So torchtitan compiles: each block by itself, and not what lies in front of the first one or behind the last. Kernels
between products are fused (``fused_ops``); float8 is torchao's (``float8_layers``), whose casts only pay if compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.precision import Precision, Scaling, precision_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.device_copies import copied_byte_s
from cdmpp.plans.sources.float8_layers import Float8Layers
from cdmpp.plans.sources.fused_ops import FusedOps
from cdmpp.plans.sources.source import BehindSource, OpExchange, RankWork, StepSource
from cdmpp.steps.strategy import Strategy

_LONGER = 1.22
"""Seconds of Inductor's kernels of a block over those of one kernel a group at the speed of a copy: as the runtime
``torch-compile`` predicts a block of Llama 3 8B on an H100, whatever is recomputed (7.95 ms over 6.54)."""
_LAUNCH_S = 2e-6
"""Least seconds of a kernel: those of an empty one on an A100 or H100."""
_WIDER = 1.1
"""Factor by which the interval is wider: nobody measured fused kernels under a plan, or casts to float8."""


class CompiledSource(BehindSource):
    """Another source, whose blocks are compiled; they are the modules that FSDP gathers one by one."""

    def __init__(
        self, nominal: StepSource, device: Device, float8: Scaling | None = None, has_loss: bool = False
    ) -> None:
        """Take a source that runs operators one by one in halves, and the device of each rank.

        Args:
            nominal: the source.
            device: of each rank, a GPU whose memory bandwidth is known.
            float8: scaling of linear layers of blocks in float8; None: they stay in the type of the source.
            has_loss: whether the loss is compiled too, as torchtitan does since 2025.

        ``CdmppError``: a CPU, or an unknown bandwidth.
        """
        byte_s = copied_byte_s(device)
        if byte_s is None:
            raise CdmppError(
                f"{device.name}: compiled blocks need a GPU whose memory bandwidth is known: leave out torch.compile"
            )
        self.nominal, self.float8, self.has_loss, self._byte_s = nominal, float8, has_loss, byte_s
        self._works = dict[tuple[int, ParallelDegrees, tuple[Strategy, ...]], RankWork]()

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank with compiled blocks; ``CdmppError`` as of the source, or without blocks."""
        key = batch, degrees, tuple(strategies)
        if key not in self._works:
            self._works[key] = self._compiled(self.nominal.work(*key), degrees)
        return self._works[key]

    def _compiled(self, work: RankWork, degrees: ParallelDegrees) -> RankWork:
        fused = FusedOps(work.rank, work.exchanges, self.has_loss)
        if not fused.blocks:
            raise CdmppError("the network has no blocks that FSDP gathers one by one, which torch.compile could take")
        rank, exchanges = fused.rank_at(_LONGER * self._byte_s, _LAUNCH_S), work.exchanges
        if self.float8 is not None:
            layers = Float8Layers(fused, self.float8, degrees.tp)
            rank = layers.rank_of(rank, self._byte_s)
            exchanges = layers.exchanges
        exchanges = tuple(_waited(one) if fused.is_within(one.after + 1) else one for one in exchanges)
        low, high = work.low / _WIDER, work.high * _WIDER
        memory = None if work.memory is None else replace(work.memory, live_bytes=0)  # it is of separate operators
        return replace(work, rank=rank, exchanges=exchanges, memory=memory, low=low, high=high, dispatch_s=())


def _waited(one: OpExchange) -> OpExchange:
    """Return an exchange of ring attention as a compiled graph has it: the next op waits for it.

    While it is traced, ``torch.distributed._functional_collectives`` waits for what it sends at once
    (``_maybe_wrap_tensor``), and by default Inductor moves no wait behind other kernels.
    """
    is_early = one.degree == "cp" and one.after >= 0
    return replace(one, before=(one.after + 1, *one.before)) if is_early and one.after + 1 < one.before[0] else one


def as_compiled(precision: Precision | str) -> tuple[Precision, Scaling | None]:
    """Return the precision of the operators that are compiled, and the scaling of products in float8 on top of it.

    Operators that torchao casts one by one are none of a compiled block: that is made of those in halves.
    """
    given = precision_of(precision)
    if given.float8 is None:
        return given, None
    return precision_of("bf16-fsdp" if given.sharded else "bf16"), given.float8
