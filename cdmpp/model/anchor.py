"""Anchor: the analytic time of each kernel, corrected by a scale and an offset fitted on training data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.model.analytic import kernel_seconds, kernel_times

N_KINDS = 2


class Anchor(nn.Module):
    """Gives a prediction its size before anything is learned: log t = slope * log(analytic) + offset, by kind."""

    slope: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slope", torch.ones(N_KINDS))
        self.register_buffer("offset", torch.zeros(N_KINDS))

    def forward(self, times: Tensor, kinds: Tensor) -> Tensor:
        """(B, K, N_TERMS) seconds, (B,) kinds -> (B, K) natural-log seconds of each kernel."""
        return self.slope[kinds, None] * kernel_seconds(times).log() + self.offset[kinds, None]

    @torch.no_grad()
    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Least squares on the training ``rows`` (n,); a kind without programs keeps slope 1 and offset 0."""
        self.slope.fill_(1.0)
        self.offset.zero_()
        raw, labels, kinds = self._collect(programs, rows)
        for kind in range(N_KINDS):
            x, y = raw[kinds == kind], labels[kinds == kind]
            if len(x) == 0:
                continue
            centred = x - x.mean()
            variance = centred.square().mean()
            slope = (centred * (y - y.mean())).mean() / variance if variance > 1e-6 else torch.ones(())
            self.slope[kind] = float(slope.clamp(0.1, 2.0))
        # The slope bends each kernel before the sum, so the offset is what is left over after it.
        bent, labels, kinds = self._collect(programs, rows)
        for kind in range(N_KINDS):
            if (kinds == kind).any():
                self.offset[kind] = float((labels - bent)[kinds == kind].mean())

    def _collect(self, programs: ProgramTensors, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        parts = [(self.total(batch), batch.log_latency, batch.kinds) for batch in ordered_batches(programs, rows)]
        raw, labels, kinds = (torch.cat(column) for column in zip(*parts, strict=True))
        return raw.double(), labels.double(), kinds

    def total(self, batch: Batch) -> Tensor:
        """(B,) natural-log seconds of the whole program: its kernels run one after the other."""
        times = kernel_times(batch.kernels, batch.device_specs, batch.kinds)
        return masked_logsumexp(self(times, batch.kinds), batch.kernel_mask)


def masked_logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    """(B, K) -> (B,), only where ``mask``."""
    return x.masked_fill(~mask, -torch.inf).logsumexp(dim=1)
