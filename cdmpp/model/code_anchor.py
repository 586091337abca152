"""CodeAnchor: the time of a CPU program by what its compiler made of it, with the costs fitted on training data.

A handful of resources, each needed so many cycles by every kind of instruction and of cache miss; the busiest decides,
softly. It is the throughput model of a processor, whose tables nobody has to know: the costs are those that explain
the training programs best (as uops.info and llvm-mca tables are measured, but under the real memory system).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, softplus

from cdmpp.code.code_vector import CODE_NAMES
from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.devices import SPEC_FIELDS
from cdmpp.model.analytic import PARTS, cores_used, kernel_parts

N_RESOURCES = 8
_CODE_COLUMNS = tuple(
    place
    for place, name in enumerate(CODE_NAMES)
    if name.startswith("n_")
    or name in ("cycles_chain", "cycles_divider", "cycles_call", "cycles_spill", "cycles")
    or name in ("loop_runs", "loop_entries", "instructions_run")
)
_MEMORY = ("l1_misses", "l1_conflicts", "l2_misses", "page_misses", "page_walks", "l3_misses", "allocation", "call")
_MEMORY_COLUMNS = tuple(PARTS.index(f"cpu_{name}") for name in _MEMORY)
N_INPUTS = len(_CODE_COLUMNS) + len(_MEMORY_COLUMNS)
_CLOCK = SPEC_FIELDS.index("clock_mhz")
_TYPICAL_CLOCK_MHZ = 2500.0
MIN_PROGRAMS = 500
"""With code vectors; fewer do not tell some hundred costs, and the analytic time stays what it is."""
_MAX_PROGRAMS = 32_768
_STEPS, _BATCH, _RATE, _HUBER = 2500, 512, 0.05, 0.1


class CodeAnchor(nn.Module):
    log_cost: Tensor
    """(N_RESOURCES, N_INPUTS) natural log of cycles."""
    sharpness: Tensor
    log_overhead: Tensor
    fitted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_cost", torch.zeros(N_RESOURCES, N_INPUTS))
        self.register_buffer("sharpness", torch.ones(()))
        self.register_buffer("log_overhead", torch.full((), 5.0))
        self.register_buffer("fitted", torch.zeros(()))

    def forward(self, codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of the whole program, meaningless for programs without a code vector.

        Args:
            codes: (B, 1 + CODE_WIDTH), see ``Batch.codes``.
            parts: (B, K, N_PARTS) seconds of ``kernel_parts``.

        Returns:
            (B,) natural-log seconds, (B, N_RESOURCES) natural-log share of each resource in them.
        """
        inputs, log_clock = _inputs(codes, parts, batch)
        logs = _log_resources(inputs, self.log_cost)
        total = _log_cycles(logs, self.sharpness, self.log_overhead)
        return total - log_clock, logs - total[:, None]

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Costs from the training ``rows`` (n,) that have a code vector: a robust error of log-latency, by Adam."""
        found = [_flat(batch) for batch in ordered_batches(programs, sample_rows(rows, _MAX_PROGRAMS))]
        inputs, labels = (torch.cat(column).double() for column in zip(*found, strict=True))
        if len(labels) < MIN_PROGRAMS:
            return
        generator = torch.Generator(device="cpu").manual_seed(0)
        start = -4.0 + 1.5 * torch.randn(N_RESOURCES, N_INPUTS, generator=generator, dtype=torch.float64)
        cost = start.to(inputs.device).requires_grad_(True)
        sharpness = torch.ones((), dtype=torch.float64, device=inputs.device, requires_grad=True)
        overhead = torch.full((), 5.0, dtype=torch.float64, device=inputs.device, requires_grad=True)
        optimiser = torch.optim.Adam([cost, sharpness, overhead], lr=_RATE)
        with torch.enable_grad():
            for step in range(_STEPS):
                optimiser.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS) + 1e-4
                some = torch.randint(len(labels), (_BATCH,), generator=generator).to(inputs.device)
                predicted = _log_cycles(_log_resources(inputs[some], cost), sharpness, overhead)
                loss = huber_loss(predicted, labels[some], delta=_HUBER) / _HUBER
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        if bool(torch.isfinite(cost).all() and torch.isfinite(sharpness) and torch.isfinite(overhead)):
            self.log_cost.copy_(cost.detach())
            self.sharpness.copy_(sharpness.detach())
            self.log_overhead.copy_(overhead.detach())
            self.fitted.fill_(1.0)


def _inputs(codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, N_INPUTS) amounts, those of memory in cycles, as one core of the device sees them; (B,) log of its clock."""
    clock = batch.device_specs[:, _CLOCK]
    clock_hz = 1e6 * torch.where(clock > 0, clock, torch.full_like(clock, _TYPICAL_CLOCK_MHZ))
    amounts = torch.exp2(codes[:, [1 + place for place in _CODE_COLUMNS]]) - 1
    cores = cores_used(batch.kernels, batch.device_specs, batch.kinds, batch.kernel_mask)
    memory = (parts[:, :, list(_MEMORY_COLUMNS)] * batch.kernel_mask[..., None]).sum(1) * clock_hz[:, None]
    return torch.cat([amounts / cores[:, None], memory], dim=1), clock_hz.log()


def _log_resources(inputs: Tensor, log_cost: Tensor) -> Tensor:
    return (inputs @ log_cost.exp().T + 1e-3).log()


def _log_cycles(logs: Tensor, sharpness: Tensor, log_overhead: Tensor) -> Tensor:
    power = 1 + softplus(sharpness)
    return torch.logaddexp((power * logs).logsumexp(dim=1) / power, log_overhead)


@torch.no_grad()
def _flat(batch: Batch) -> tuple[Tensor, Tensor]:
    """(m, N_INPUTS) and (m,) log-cycles of the programs of ``batch`` that have a code vector."""
    known = batch.codes[:, 0] > 0
    inputs, log_clock = _inputs(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
    return inputs[known], (batch.log_latency + log_clock)[known]
