"""AnalyticalPrior: the analytic time of each kernel, with one factor a part fitted on training data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.model.analytic import N_PARTS, bound_times, kernel_parts, kernel_seconds

N_KINDS = 2
_MAX_FIT_PROGRAMS = 8192
_HUBER, _RIDGE = 0.3, 0.003


class AnalyticalPrior(nn.Module):
    """Each part of ``analytic`` has a factor; a ridge holds it at one where the training programs do not tell."""

    log_factor: Tensor
    sharpness: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_factor", torch.zeros(N_PARTS))
        self.register_buffer("sharpness", torch.ones(N_KINDS))

    def times(self, parts: Tensor) -> Tensor:
        """Turn (B, K, N_PARTS) seconds of ``kernel_parts`` into (B, K, N_BOUNDS) seconds that bound each kernel."""
        return bound_times(parts, self.log_factor)

    def forward(self, times: Tensor, kinds: Tensor) -> Tensor:
        """Turn (B, K, N_BOUNDS) seconds and (B,) kinds into (B, K) natural-log seconds of each kernel."""
        return kernel_seconds(times, self.sharpness[kinds, None]).log()

    def total(self, batch: Batch) -> Tensor:
        """Return (B,) natural-log seconds of the whole program: its kernels run one after the other."""
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        return masked_logsumexp(self(self.times(parts), batch.kinds), batch.kernel_mask)

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit factors and sharpness to the training ``rows`` (n,): a robust error of log-latency, by L-BFGS."""
        parts, owners, kinds, labels = _flattened(programs, sample_rows(rows, _MAX_FIT_PROGRAMS))
        log_factor = torch.zeros(N_PARTS, dtype=torch.float64, device=parts.device, requires_grad=True)
        sharpness = torch.ones(N_KINDS, dtype=torch.float64, device=parts.device, requires_grad=True)
        optimiser = torch.optim.LBFGS([log_factor, sharpness], lr=0.5, max_iter=120, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            seconds = kernel_seconds(bound_times(parts, log_factor), sharpness[kinds[owners]])
            total = torch.zeros_like(labels).index_add(0, owners, seconds)
            loss = huber_loss(total.log(), labels, delta=_HUBER) / _HUBER
            loss = loss + _RIDGE * (log_factor.square().mean() + 0.1 * (sharpness - 1).square().mean())
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        if bool(torch.isfinite(log_factor).all() and torch.isfinite(sharpness).all()):
            self.log_factor.copy_(log_factor.detach())
            self.sharpness.copy_(sharpness.detach())


@torch.no_grad()
def _flattened(programs: ProgramTensors, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parts (k, N_PARTS) of all kernels, their program (k,), kinds (n,) and log-latency (n,) of the programs."""
    columns, first = [], 0
    for batch in ordered_batches(programs, rows):
        mask = batch.kernel_mask
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)[mask].double()
        owners = first + torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
        columns.append((parts, owners, batch.kinds, batch.log_latency.double()))
        first += len(mask)
    return tuple(torch.cat(column) for column in zip(*columns, strict=True))  # type: ignore[return-value]


def masked_logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    """Sum only where ``mask``, (B, K) -> (B,)."""
    return x.masked_fill(~mask, -torch.inf).logsumexp(dim=1)
