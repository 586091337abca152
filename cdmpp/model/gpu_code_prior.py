"""GpuCodePrior: the time of a GPU program by its executed kernels, with a few costs fitted on training data.

The cycles of a simulated multiprocessor come first; those of single resources add what they miss of it. Memory beyond
the caches and the start of blocks run next to them, and the slowest of the three decides, softly. A launch is on top.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_NAMES, GPU_CYCLES
from cdmpp.machine_code.gpu.kernel_code import VARIANTS
from cdmpp.model.analytic import PARTS, kernel_parts
from cdmpp.model.kernel_quantities import KernelQuantities

RESOURCES = ("multiprocessor", "memory", "start")
MIN_PROGRAMS = 100
"""Programs with code vectors that a fit needs: fewer do not tell the costs, and only the analytic time counts."""
_VARIANTS = tuple(VARIANTS)
_COUNTED = tuple(one.name for one in GPU_CYCLES if one.name not in ("start", *_VARIANTS))
CYCLES = [1 + GPU_CODE_NAMES.index(f"cycles_{name}") for name in (*_COUNTED, *_VARIANTS)]
START, KERNELS, TEXT = (1 + GPU_CODE_NAMES.index(name) for name in ("cycles_start", "kernels", "longest_instructions"))
"""Columns of ``Batch.codes``, whose first is the flag."""
DRAM = [PARTS.index(f"gpu_dram_{way}") for way in ("read", "write")]
N_COSTS = len(_COUNTED) + 4 + len(_VARIANTS)
"""Natural logs: of each resource, of memory, of a launch (ns: no clock of the GPU shortens it), of the text (cycles an
instruction), and how sharply the slowest decides. Then how far the simulated core is each of its variants."""
MEMORY, LAUNCH, CODE, SHARP = range(len(_COUNTED), len(_COUNTED) + 4)
SIMULATED = _COUNTED.index("simulated")
N_COUNTED, N_VARIANTS = len(_COUNTED), len(_VARIANTS)
_MAX_PROGRAMS, _HUBER, _RIDGE, _STEPS = 8192, 0.1, 0.003, 150
_FLOOR = 1.0


class GpuCodePrior(nn.Module):
    """The code vector of a whole program gives its time."""

    n_resources = len(RESOURCES)
    simulated = 1 + GPU_CODE_NAMES.index("cycles_simulated")
    """Column of ``Batch.codes``."""
    log_cost: Tensor
    """(N_COSTS,)"""
    fitted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_cost", _start())
        self.register_buffer("fitted", torch.zeros(()))

    def forward(self, codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (B,) natural-log seconds and (B, len(RESOURCES)) natural-log share of each resource in them.

        By ``Batch.codes``, meaningless without a code vector, and the seconds of ``kernel_parts`` (B, K, N_PARTS).
        """
        inputs, log_clock = _inputs(codes, parts, batch)
        total, logs = _log_cycles(inputs, self.log_cost)
        return total - log_clock, logs - total[:, None]

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit costs to the training ``rows`` (n,) that have a code vector: a robust error of log-latency, by L-BFGS."""
        inputs, labels = _amounts(programs, sample_rows(rows, _MAX_PROGRAMS))
        if len(labels) < MIN_PROGRAMS:
            return
        cost = _start().double().to(inputs.device).requires_grad_(True)
        optimiser = torch.optim.LBFGS([cost], lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            error = huber_loss(_log_cycles(inputs, cost)[0], labels, delta=_HUBER) / _HUBER
            loss = error + _RIDGE * cost[: len(_COUNTED)].exp().square().mean()
            loss = loss + _RIDGE * cost[-len(_VARIANTS) :].square().mean()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        if bool(torch.isfinite(cost).all()):
            self.log_cost.copy_(cost.detach())
            self.fitted.fill_(1.0)


def _start() -> Tensor:
    """The simulated cycles as they are, and next to nothing of the others."""
    cost = torch.full((N_COSTS,), -5.0)
    cost[-len(_VARIANTS) :] = 0.0
    cost[SIMULATED], cost[MEMORY], cost[SHARP] = -0.15, 0.0, 0.5
    cost[LAUNCH], cost[CODE] = 8.0, -1.0
    return cost


def _inputs(codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, .) cycles of resources, of memory and of starts, launches, instructions, logs of variants; (B,) log of clock.

    A launch is in cycles of a nanosecond. A variant is by how much it is slower than the simulated core.
    """
    clock_hz = 1e6 * KernelQuantities(batch.kernels, batch.device_specs, batch.kinds).device("clock_mhz")
    amounts = torch.exp2(codes[:, [*CYCLES, START, KERNELS, TEXT]]) - 1
    memory = (parts[:, :, DRAM].sum(-1) * batch.kernel_mask).sum(1, keepdim=True) * clock_hz
    n, last = len(_COUNTED), len(_COUNTED) + len(_VARIANTS)
    slower = amounts[:, n:last].clamp_min(_FLOOR).log() - amounts[:, [SIMULATED]].clamp_min(_FLOOR).log()
    starts, kernels, text = amounts[:, last:].split(1, dim=1)
    return torch.cat([amounts[:, :n], memory, starts, 1e-9 * clock_hz * kernels, text, slower], dim=1), clock_hz[
        :, 0
    ].log()


def _log_cycles(inputs: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) log-cycles, and (B, len(RESOURCES)) of each resource."""
    n, cost = len(_COUNTED), cost.to(inputs.dtype)
    memory, starts, launches, text = inputs[:, n : n + 4].unbind(1)
    slower = (inputs[:, n + 4 :] @ cost[-len(_VARIANTS) :]).exp()
    simulated = inputs[:, SIMULATED] * (slower - 1) * cost[SIMULATED].exp()
    resources = [inputs[:, :n] @ cost[:n].exp() + simulated, memory * cost[MEMORY].exp(), starts]
    logs = torch.stack(resources, dim=1).clamp_min(_FLOOR).log()
    power = 1 + cost[SHARP].exp()
    total = ((power * logs).logsumexp(1) / power).exp() + launches * cost[LAUNCH].exp() + text * cost[CODE].exp()
    return total.log(), logs


@torch.no_grad()
def _amounts(programs: ProgramTensors, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """``_inputs`` (m, .) and log-cycles (m,) of the programs that have a code vector."""
    columns = []
    for batch in ordered_batches(programs, rows):
        coded = batch.codes[:, 0] > 0
        inputs, log_clock = _inputs(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
        columns.append((inputs[coded].double(), (batch.log_latency + log_clock)[coded].double()))
    inputs, labels = (torch.cat(column) for column in zip(*columns, strict=True))
    return inputs, labels
