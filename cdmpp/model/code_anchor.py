"""CodeAnchor: the time of a CPU program by what its compiler made of it, with the costs fitted on training data.

A handful of resources, each needed so many cycles by every kind of instruction and of cache miss; the busiest decides,
softly. It is the throughput model of a processor, whose tables nobody has to know: the costs are those that explain
the training programs best (as uops.info and llvm-mca tables are measured, but under the real memory system). What three
datasheet numbers say beforehand is not left to them: how many instructions a core starts in a cycle, how long an
addition makes the next one wait, and what a vector gather costs, which microcode has made tenfold on some.

Where it is fitted to several devices each has *per-device costs* beside the shared ones: a factor on all of its cycles
(its clock is not what the datasheet says), one on each kind of amount, and one on the overhead of a call. A ridge keeps
them near one where its programs do not tell. A device that was not learned has those of the one with the nearest
datasheet, and a few programs of it tell its own (``learn_device``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, softplus

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.devices import SPEC_FIELDS
from cdmpp.machine_code.code_features import CODE_NAMES, MACHINE_AMOUNTS
from cdmpp.model.analytic import PARTS, kernel_parts
from cdmpp.model.cpu_parts import cores_used

N_RESOURCES = 8
_CODE_COLUMNS = tuple(
    place
    for place, name in enumerate(CODE_NAMES)
    if name.startswith("n_")
    or name in ("cycles_chain", "cycles_divider", "cycles_call", "cycles_spill", "cycles")
    or name in ("loop_runs", "loop_entries", "instructions_run")
    or name.removeprefix("machine_") in MACHINE_AMOUNTS
)
_MEMORY = ("l1_misses", "l1_conflicts", "l2_misses", "page_misses", "page_walks", "l3_misses", "allocation", "call")
_MEMORY_COLUMNS = tuple(PARTS.index(f"cpu_{name}") for name in _MEMORY)
N_INPUTS = len(_CODE_COLUMNS) + len(_MEMORY_COLUMNS)
_CLOCK = SPEC_FIELDS.index("clock_mhz")
_ISSUE_WIDTH = SPEC_FIELDS.index("issue_width")
_GATHER_CYCLES = SPEC_FIELDS.index("gather_cycles_per_lane")
_ADD_LATENCY = SPEC_FIELDS.index("add_latency_cycles")
_SIMULATED_ADD_LATENCY, _FAST_ADD_LATENCY = 4.0, 2.0
_TYPICAL_CLOCK_MHZ, _TYPICAL_ISSUE_WIDTH, _TYPICAL_GATHER_CYCLES = 2500.0, 5.0, 1.0
_GATHERS = tuple(CODE_NAMES[place] for place in _CODE_COLUMNS if "gather" in CODE_NAMES[place])
_GATHER_COLUMNS = [_CODE_COLUMNS.index(CODE_NAMES.index(name)) for name in _GATHERS]
_CHAINS = (
    *("cycles_chain", "cycles_divider"),
    *(f"machine_{name}" for name in ("cycles", "latency_cycles", "slow_add_cycles", "overlap_cycles")),
)
_CYCLES, _LATENCY, _SLOW_ADD, _OVERLAP = (
    _CODE_COLUMNS.index(CODE_NAMES.index(f"machine_{name}"))
    for name in ("cycles", "latency_cycles", "slow_add_cycles", "overlap_cycles")
)
_ISSUED = torch.tensor([CODE_NAMES[place] not in _GATHERS + _CHAINS for place in _CODE_COLUMNS])
"""Of the code columns: not what takes its cycles however many instructions start in one."""
MIN_PROGRAMS = 500
"""With code vectors; fewer do not tell some hundred costs, and the analytic time stays what it is."""
_MAX_PROGRAMS = 32_768
_STEPS, _BATCH, _RATE, _HUBER = 2500, 512, 0.05, 0.1
_DEVICE_RIDGE, _DEVICE_STEPS, _DEVICE_RATE = 4.0, 400, 0.02
_SCALE, _OVERHEAD = N_INPUTS, N_INPUTS + 1
N_DEVICE_COSTS = N_INPUTS + 2


class CodeAnchor(nn.Module):
    """Time of a whole program by its code vector. The buffers are named as in the stored models."""

    log_cost: Tensor
    """(N_RESOURCES, N_INPUTS) natural log of cycles."""
    sharpness: Tensor
    log_overhead: Tensor
    fitted: Tensor
    known: Tensor
    """(max_devices, device width) datasheet vectors of the devices with costs of their own; infinite: a free place."""
    own: Tensor
    """(max_devices, N_DEVICE_COSTS) natural log of their factors: of each amount, of all cycles, of the overhead."""

    def __init__(self, max_devices: int = 0, device_width: int = 0) -> None:
        """``max_devices`` can have costs of their own; with 0 all have the shared ones."""
        super().__init__()
        self.register_buffer("log_cost", torch.zeros(N_RESOURCES, N_INPUTS))
        self.register_buffer("sharpness", torch.ones(()))
        self.register_buffer("log_overhead", torch.full((), 5.0))
        self.register_buffer("fitted", torch.zeros(()))
        if max_devices:
            self.register_buffer("known", torch.full((max_devices, device_width), torch.inf))
            self.register_buffer("own", torch.zeros(max_devices, N_DEVICE_COSTS))
        self.max_devices = max_devices

    def forward(self, codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of the whole program, meaningless for programs without a code vector.

        Args:
            codes: (B, 1 + CODE_WIDTH), see ``Batch.codes``.
            parts: (B, K, N_PARTS) seconds of ``kernel_parts``.

        Returns:
            (B,) natural-log seconds, (B, N_RESOURCES) natural-log share of each resource in them.
        """
        inputs, log_clock = _inputs(codes, parts, batch)
        own = self.costs_of(batch.device_vectors) if self.max_devices else None
        total, logs = _log_cycles(inputs, self.log_cost, self.sharpness, self.log_overhead, own)
        return total - log_clock, logs - total[:, None]

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Costs from the training ``rows`` (n,) that have a code vector: a robust error of log-latency, by Adam."""
        inputs, labels, vectors = _amounts(programs, sample_rows(rows, _MAX_PROGRAMS))
        if len(labels) < MIN_PROGRAMS:
            return
        devices, which = vectors.unique(dim=0, return_inverse=True)
        several = 1 < len(devices) <= self.max_devices
        generator = torch.Generator(device="cpu").manual_seed(0)
        start = -4.0 + 1.5 * torch.randn(N_RESOURCES, N_INPUTS, generator=generator, dtype=torch.float64)
        cost = start.to(inputs.device).requires_grad_(True)
        sharpness = torch.ones((), dtype=torch.float64, device=inputs.device, requires_grad=True)
        overhead = torch.full((), 5.0, dtype=torch.float64, device=inputs.device, requires_grad=True)
        own = torch.zeros(len(devices), N_DEVICE_COSTS, dtype=torch.float64, device=inputs.device)

        def loss() -> Tensor:
            some = torch.randint(len(labels), (_BATCH,), generator=generator).to(inputs.device)
            its_own = own[which[some]] if several else None
            predicted, _ = _log_cycles(inputs[some], cost, sharpness, overhead, its_own)
            error = huber_loss(predicted, labels[some], delta=_HUBER) / _HUBER
            return error + _DEVICE_RIDGE * own.square().sum() / len(labels) if several else error

        shared = [cost, sharpness, overhead]
        if _minimised(loss, [*shared, own.requires_grad_(True)] if several else shared, _RATE, _STEPS):
            # The same function, with what the devices have in common (their mean) among the shared costs.
            middle = own.detach().mean(0)
            self.log_cost.copy_(cost.detach() + middle[:N_INPUTS] + middle[_SCALE])
            self.sharpness.copy_(sharpness.detach())
            self.log_overhead.copy_(overhead.detach() + middle[_OVERHEAD] + middle[_SCALE])
            self.fitted.fill_(1.0)
            if len(devices) <= self.max_devices:  # a single one, too: it must not take those of a device learned later
                for vector, costs in zip(devices, own.detach() - middle, strict=True):
                    self._remember(vector, costs)

    def learn_device(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Costs of the devices of ``rows`` (n,) that have none yet, near those of the nearest; the rest stays.

        Nothing happens where the shared costs were never fitted, where no device is known that they were fitted to (all
        of them would take the new one's), or where there is no room for another.
        """
        if not self.max_devices or not self.fitted or bool(self.known.isinf().all()):
            return
        inputs, labels, vectors = _amounts(programs, sample_rows(rows, _MAX_PROGRAMS))
        for vector in vectors.unique(dim=0):
            if bool((self.known == vector).all(1).any()) or not bool(self.known.isinf().all(1).any()):
                continue
            of_device = (vectors == vector).all(1)
            self._learn_one(vector, inputs[of_device], labels[of_device])

    def _learn_one(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> None:
        shared = self.log_cost.double(), self.sharpness.double(), self.log_overhead.double()
        before = self.costs_of(vector[None])[0].double()
        own = before.clone().requires_grad_(True)

        def loss() -> Tensor:
            predicted, _ = _log_cycles(inputs, *shared, own[None])
            error = huber_loss(predicted, labels, delta=_HUBER) / _HUBER
            return error + _DEVICE_RIDGE * (own - before).square().sum() / len(labels)

        if _minimised(loss, [own], _DEVICE_RATE, _DEVICE_STEPS):
            self._remember(vector, own.detach())

    def _remember(self, vector: Tensor, costs: Tensor) -> None:
        place = int(self.known.isinf().all(1).nonzero()[0, 0])
        self.known[place] = vector.to(self.known)
        self.own[place] = costs.to(self.own)

    def costs_of(self, vectors: Tensor) -> Tensor:
        """(B, device width) -> (B, N_DEVICE_COSTS) of the device with the nearest datasheet; zero without any."""
        distance = (vectors[:, None] - self.known[None]).square().sum(-1)
        return self.own[distance.argmin(1)]


def _minimised(loss: Callable[[], Tensor], values: Sequence[Tensor], rate: float, steps: int) -> bool:
    """Adam with a falling rate; False where it ended in a value that is not finite."""
    optimiser = torch.optim.Adam(values, lr=rate)
    with torch.enable_grad():
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = rate * (1 - step / steps) + 1e-4
            optimiser.zero_grad()
            loss().backward()
            optimiser.step()
    return all(bool(torch.isfinite(value).all()) for value in values)


def _inputs(codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, N_INPUTS) amounts, those of memory in cycles, as one core of the device sees them; (B,) log of its clock."""

    def datasheet(place: int, typical: float) -> Tensor:
        value = batch.device_specs[:, place]
        return torch.where(value > 0, value, torch.full_like(value, typical))

    clock_hz = 1e6 * datasheet(_CLOCK, _TYPICAL_CLOCK_MHZ)
    amounts = torch.exp2(codes[:, [1 + place for place in _CODE_COLUMNS]]) - 1
    slower = _TYPICAL_ISSUE_WIDTH / datasheet(_ISSUE_WIDTH, _TYPICAL_ISSUE_WIDTH)
    amounts = amounts * torch.where(_ISSUED.to(amounts.device), slower[:, None], 1.0)
    amounts[:, _GATHER_COLUMNS] *= datasheet(_GATHER_CYCLES, _TYPICAL_GATHER_CYCLES)[:, None]
    # Costs are never negative: what is saved of the simulated cycles enters as what is left.
    faster = _SIMULATED_ADD_LATENCY - datasheet(_ADD_LATENCY, _SIMULATED_ADD_LATENCY)
    saved = amounts[:, _SLOW_ADD] * faster / (_SIMULATED_ADD_LATENCY - _FAST_ADD_LATENCY)
    least = (amounts[:, _CYCLES] - amounts[:, _SLOW_ADD]).clamp_min(0)
    for column in (_CYCLES, _LATENCY):
        amounts[:, column] = (amounts[:, column] - saved).clamp_min(0)
    amounts[:, _SLOW_ADD] = least
    amounts[:, _OVERLAP] = (amounts[:, _CYCLES] - amounts[:, _OVERLAP]).clamp_min(0)
    cores = cores_used(batch.kernels, batch.device_specs, batch.kinds, batch.kernel_mask)
    memory = (parts[:, :, list(_MEMORY_COLUMNS)] * batch.kernel_mask[..., None]).sum(1) * clock_hz[:, None]
    return torch.cat([amounts / cores[:, None], memory], dim=1), clock_hz.log()


def _log_cycles(
    inputs: Tensor, log_cost: Tensor, sharpness: Tensor, log_overhead: Tensor, own: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(B, N_INPUTS) amounts, (B or 1, N_DEVICE_COSTS) -> (B,) log-cycles, (B, N_RESOURCES) of each resource."""
    if own is not None:
        inputs = inputs * own[:, :N_INPUTS].exp()
        log_overhead = log_overhead + own[:, _OVERHEAD]
    logs = (inputs @ log_cost.exp().T + 1e-3).log()
    power = 1 + softplus(sharpness)
    total = torch.logaddexp((power * logs).logsumexp(dim=1) / power, log_overhead)
    if own is not None:
        total, logs = total + own[:, _SCALE], logs + own[:, _SCALE, None]
    return total, logs


@torch.no_grad()
def _amounts(programs: ProgramTensors, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Amounts (m, N_INPUTS), log-cycles (m,) and datasheet vectors of the programs that have a code vector."""
    columns = []
    for batch in ordered_batches(programs, rows):
        coded = batch.codes[:, 0] > 0
        inputs, log_clock = _inputs(batch.codes, kernel_parts(batch.kernels, batch.device_specs, batch.kinds), batch)
        columns.append((inputs[coded], (batch.log_latency + log_clock)[coded], batch.device_vectors[coded]))
    inputs, labels, vectors = (torch.cat(column) for column in zip(*columns, strict=True))
    return inputs.double(), labels.double(), vectors
