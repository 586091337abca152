"""LibraryAnchor: the roofline of a library operator with a few numbers fitted for each family of kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.model.library_inputs import LibraryQuantities
from cdmpp.operators.operator import FAMILIES

_FLOOR, _COMPUTE, _MEMORY, _POWER = range(4)
"""Natural logs: seconds of a call; shares of peak and bandwidth; TFLOP/s a watt at 12 nm."""
_START = (-11.0, -0.3, -0.3, -2.5)
_SHRINK_START, _SHARP_START = 0.7, 1.0
_MAX_PROGRAMS, _HUBER, _RIDGE, _STEPS = 16_384, 0.2, 0.003, 200


class LibraryAnchor(nn.Module):
    """max(flops / rate, bytes / bandwidth), softly, on top of the floor that dispatching a call takes.

    The rate is the share of the peak that the family reaches, or what the board's power allows of it.
    """

    numbers: Tensor
    """(families, 4)"""
    shared: Tensor
    """(2,) how much a finer process saves, and how sharply the slowest resource decides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.tensor(_START).repeat(len(FAMILIES), 1))
        self.register_buffer("shared", torch.tensor([_SHRINK_START, _SHARP_START]))

    def forward(self, batch: Batch) -> Tensor:
        """(B,) natural-log seconds."""
        return _log_seconds(*_terms(batch), self.numbers, self.shared)

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """On the training ``rows`` (n,): a robust error of log-latency, by L-BFGS, every device counted alike."""
        terms, labels, weights = _gathered(programs, sample_rows(rows, _MAX_PROGRAMS))
        start_numbers, start_shared = (
            torch.tensor(_START).double(),
            torch.tensor([_SHRINK_START, _SHARP_START]).double(),
        )
        numbers = start_numbers.repeat(len(FAMILIES), 1).to(labels.device).requires_grad_(True)
        shared = start_shared.clone().to(labels.device).requires_grad_(True)
        optimiser = torch.optim.LBFGS([numbers, shared], lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            difference = _log_seconds(*terms, numbers, shared) - labels
            error = huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=_HUBER) / _HUBER
            ridge = (numbers - start_numbers).square().mean() + (shared - start_shared).square().mean()
            loss = (weights * error).sum() / weights.sum() + _RIDGE * ridge
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        if bool(torch.isfinite(numbers).all() and torch.isfinite(shared).all()):
            self.numbers.copy_(numbers.detach())
            self.shared.copy_(shared.detach())


def _terms(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 3) seconds at full speed, (B,) log of the finer process, (B, families) which family it is."""
    q = LibraryQuantities(batch)
    family = torch.stack([q[f"family_{name}"] for name in FAMILIES], dim=1)
    return torch.stack([q.compute_s(), q.memory_s(), q.power_s()], dim=1), q.log_shrink(), family


def _log_seconds(seconds: Tensor, log_shrink: Tensor, family: Tensor, numbers: Tensor, shared: Tensor) -> Tensor:
    own = family.to(numbers.dtype) @ numbers
    costs = -own[:, [_COMPUTE, _MEMORY, _POWER]]
    costs = costs - torch.stack([0 * log_shrink, 0 * log_shrink, shared[0] * log_shrink], dim=1)
    logs = seconds.to(numbers.dtype).clamp_min(1e-12).log() + costs
    power = 1 + shared[1].exp()
    busiest = (power * logs).logsumexp(1) / power
    return torch.logaddexp(busiest, own[:, _FLOOR])


@torch.no_grad()
def _gathered(programs: ProgramTensors, rows: np.ndarray) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    columns = []
    for batch in ordered_batches(programs, rows):
        device = programs.device_index[batch.rows]
        columns.append((*(term.double() for term in _terms(batch)), batch.log_latency.double(), device))
    *terms, labels, device = (torch.cat(column) for column in zip(*columns, strict=True))
    counts = torch.bincount(device)
    return (terms[0], terms[1], terms[2]), labels, 1.0 / counts[device].double()
