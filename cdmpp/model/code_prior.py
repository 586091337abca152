"""CodePrior: the time of a CPU program by what its compiler made of it, with the costs fitted on training data.

A handful of resources, each needed so many cycles by every kind of instruction and of cache miss; the busiest decides,
softly. Cycles come from the simulated core of the device; what is only counted is scaled by how many instructions it
starts in a cycle, gathers by what they cost there, which microcode has made tenfold on some.

Where it is fitted to several devices each has *per-device costs* next to the shared ones: a factor on all of its
cycles, one on each kind of amount, and one on the overhead of a call. A ridge keeps them near one. A device that was
not learned goes by the shared costs, nearer than those of the most similar one; a few programs tell its own
(``learn_device``, ``scale_device``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, softplus

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import sample_rows
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, MACHINE_AMOUNTS
from cdmpp.model.analytic import PARTS, kernel_parts
from cdmpp.model.cpu_parts import cores_used
from cdmpp.model.kernel_quantities import KernelQuantities
from cdmpp.model.known_devices import recalled, remember

N_RESOURCES = 8
MIN_PROGRAMS = 500
"""Programs with code vectors that a fit needs: from fewer some hundred costs cannot be told, and only the analytic time
counts."""


def _is_simulated(name: str) -> bool:
    """True if an amount is in cycles of the device's own core."""
    return name.startswith("machine_") and name.endswith("cycles")


_NAMES = tuple(
    name
    for name in CODE_NAMES
    if name.startswith("n_")
    or name in ("cycles_chain", "cycles_divider", "cycles_call", "cycles_spill", "cycles")
    or name in ("loop_runs", "loop_entries", "instructions_run")
    or name.removeprefix("machine_") in MACHINE_AMOUNTS
)
_MEMORY = ("l1_misses", "l1_conflicts", "l2_misses", "page_misses", "page_walks", "l3_misses", "allocation", "call")
MEMORY_COLUMNS = [PARTS.index(f"cpu_{name}") for name in _MEMORY]
CODE_COLUMNS = [1 + CODE_NAMES.index(name) for name in _NAMES]
"""Columns of ``Batch.codes``, whose first is the flag."""
N_INPUTS = len(CODE_COLUMNS) + len(MEMORY_COLUMNS)
_SCALE, _OVERHEAD = N_INPUTS, N_INPUTS + 1
N_DEVICE_COSTS = N_INPUTS + 2
CYCLES, OVERLAP = (_NAMES.index(f"machine_{name}") for name in ("cycles", "overlap_cycles"))
GATHERS = [place for place, name in enumerate(_NAMES) if "gather" in name]
ISSUED = torch.tensor(
    [
        "gather" not in name and name not in ("cycles_chain", "cycles_divider") and not _is_simulated(name)
        for name in _NAMES
    ]
)
"""True for code columns whose cycles depend on how many instructions start in one."""
_TYPICAL_ISSUE_WIDTH = 5.0
SCALES = ("core", "caches", "memory")
"""Groups of costs that few programs of a device tell together: cycles of the core, cache misses, memory."""
_GROUPS = torch.zeros(N_DEVICE_COSTS, len(SCALES), dtype=torch.float64)
"""(N_DEVICE_COSTS, len(SCALES)) 1 where a cost is of a group; a call's overhead and the factor on all are of none."""
_GROUPS[: len(CODE_COLUMNS), 0] = 1.0
for _place, _name in enumerate(_MEMORY, len(CODE_COLUMNS)):
    _GROUPS[_place, 2 if _name in ("l3_misses", "allocation", "call") else 1] = 1.0
_SINGLE = torch.eye(N_DEVICE_COSTS, dtype=torch.float64)[:, :N_INPUTS]
_SCALED = torch.cat([_GROUPS, _SINGLE], dim=1)
"""(N_DEVICE_COSTS, len(SCALES) + N_INPUTS) a factor of each group, and one of each cost next to it."""
_SCALE_PRIOR, _SCALE_NOISE, _SCALE_HUBER = 0.5, 0.4, 0.3
CALL_NS, _CALL_PRIOR = 1.0, 2.0
"""Least time of a call where no program says more, and how far its natural log may be from that. It is a time:
what a fit in cycles leaves of it is too little for any factor to move."""
_MAX_PROGRAMS = 32_768
_STEPS, _BATCH, _RATE, _HUBER = 2500, 512, 0.05, 0.1
_DEVICE_RIDGE, _DEVICE_STEPS, _DEVICE_RATE = 4.0, 400, 0.02


class CodePrior(nn.Module):
    """The code vector of a whole program gives its time."""

    n_resources = N_RESOURCES
    simulated = 1 + CODE_NAMES.index("machine_cycles")
    """Column of ``Batch.codes``."""
    log_cost: Tensor
    """(N_RESOURCES, N_INPUTS) natural log of cycles."""
    sharpness: Tensor
    log_overhead: Tensor
    fitted: Tensor
    known: Tensor
    """(max_devices, device width) datasheet vectors of the devices with costs of their own; infinite: a free place."""
    own: Tensor
    """(max_devices, N_DEVICE_COSTS) natural log of their factors: of each amount, of all cycles, of the overhead."""

    def __init__(self, max_devices: int, device_width: int) -> None:
        """``max_devices`` can have costs of their own; where training has more, all share theirs."""
        super().__init__()
        self.register_buffer("log_cost", torch.zeros(N_RESOURCES, N_INPUTS))
        self.register_buffer("sharpness", torch.ones(()))
        self.register_buffer("log_overhead", torch.full((), 5.0))
        self.register_buffer("fitted", torch.zeros(()))
        self.register_buffer("known", torch.full((max_devices, device_width), torch.inf))
        self.register_buffer("own", torch.zeros(max_devices, N_DEVICE_COSTS))

    def forward(self, codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (B,) natural-log seconds and (B, N_RESOURCES) natural-log share of each resource in them.

        By ``Batch.codes``, meaningless without a code vector, and the seconds of ``kernel_parts`` (B, K, N_PARTS).
        """
        inputs, log_clock = _inputs(codes, parts, batch)
        own = self.costs_of(batch.device_vectors)
        total, logs = _log_cycles(inputs, self.log_cost, self.sharpness, self.log_overhead, own)
        return total - log_clock, logs - total[:, None]

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit costs to the training ``rows`` (n,) that have a code vector: a robust error of log-latency, by Adam."""
        inputs, labels, vectors = _amounts(programs, sample_rows(rows, _MAX_PROGRAMS))
        if len(labels) < MIN_PROGRAMS:
            return
        devices, which = vectors.unique(dim=0, return_inverse=True)
        generator = torch.Generator(device="cpu").manual_seed(0)
        start = -4.0 + 1.5 * torch.randn(N_RESOURCES, N_INPUTS, generator=generator, dtype=torch.float64)
        cost, sharpness, overhead = start.to(inputs), inputs.new_ones(()), inputs.new_full((), 5.0)
        own = inputs.new_zeros(len(devices), N_DEVICE_COSTS)

        def loss() -> Tensor:
            some = torch.randint(len(labels), (_BATCH,), generator=generator).to(inputs.device)
            costs = cost, sharpness, overhead, own[which[some]]
            return _error(inputs[some], labels[some], *costs) + _ridge(own, len(labels))

        several = 1 < len(devices) <= len(self.known)
        if _minimised(loss, [cost, sharpness, overhead, *([own] if several else [])], _RATE, _STEPS):
            middle = own.mean(0)  # what the devices have in common goes to the shared costs
            self.log_cost.copy_(cost + middle[:N_INPUTS] + middle[_SCALE])
            self.sharpness.copy_(sharpness)
            self.log_overhead.copy_(overhead + middle[_OVERHEAD] + middle[_SCALE])
            self.fitted.fill_(1.0)
            if len(devices) <= len(self.known):  # a single one, too: it must not take those of a device learned later
                for vector, costs in zip(devices, own - middle, strict=True):
                    remember(vector, costs, self.known, self.own)

    def learn_device(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit costs of those devices of ``rows`` (n,) that have none, near the shared ones, while there is room."""
        if not self.fitted or self.known.isinf().all():  # without a known device all would take the new one's
            return
        inputs, labels, vectors = _amounts(programs, sample_rows(rows, _MAX_PROGRAMS))
        for vector in vectors.unique(dim=0):
            if not (self.known == vector).all(1).any() and self.known.isinf().all(1).any():
                of_device = (vectors == vector).all(1)
                self._learn_one(vector, inputs[of_device], labels[of_device])

    def scale_device(
        self, programs: ProgramTensors, rows: np.ndarray, correction: Tensor, weights: Tensor
    ) -> dict[str, float]:
        """Fit a device's costs to a few ``rows`` (n,) of it, all with code vectors: factors, and the time of a call.

        Each group of ``SCALES`` has a factor and each cost another; those near one are likelier. ``correction`` (n,):
        what the model adds to the log-seconds of this prior; ``weights`` (n,): how much each program tells, one for
        each task of theirs. Returns the factors of the groups by name, and ``call_ns``, what a call takes.
        """
        inputs, labels, vectors = _amounts(programs, rows)
        shared = self.log_cost.double(), self.sharpness.double(), self.log_overhead.double()
        cycles = (CALL_NS * 1e-9 * _clock_hz(programs.batch(rows[:1])).double()[0]).log()
        before = self.costs_of(vectors[:1])[0].double()
        least = torch.maximum(self.log_overhead.double() + before[_OVERHEAD] + before[_SCALE], cycles)
        scales, call = inputs.new_zeros(_SCALED.shape[1]), inputs.new_zeros(())

        def costs() -> Tensor:
            own = before + _SCALED @ scales
            own[_OVERHEAD] = least + _CALL_PRIOR * call - self.log_overhead.double() - own[_SCALE]
            return own

        def loss() -> Tensor:
            log_cycles, _ = _log_cycles(inputs, *shared, costs()[None])
            error = huber_loss(log_cycles + correction, labels, delta=_SCALE_HUBER, reduction="none")
            unlikely = (scales / _SCALE_PRIOR).square().sum() + call.square()
            return (weights * error).sum() / _SCALE_NOISE**2 + 0.5 * unlikely

        if _minimised(loss, [scales, call], _DEVICE_RATE, _DEVICE_STEPS):
            remember(vectors[0], costs(), self.known, self.own)
        factors = scales[: len(SCALES)].exp().tolist()
        call_ns = CALL_NS * (least + _CALL_PRIOR * call - cycles).exp().item()
        return {**dict(zip(SCALES, factors, strict=True)), "call_ns": call_ns}

    def _learn_one(self, vector: Tensor, inputs: Tensor, labels: Tensor) -> None:
        shared = self.log_cost.double(), self.sharpness.double(), self.log_overhead.double()
        before = self.costs_of(vector[None])[0].double()
        own = before.clone()

        def loss() -> Tensor:
            return _error(inputs, labels, *shared, own[None]) + _ridge(own - before, len(labels))

        if _minimised(loss, [own], _DEVICE_RATE, _DEVICE_STEPS):
            remember(vector, own, self.known, self.own)

    def costs_of(self, vectors: Tensor) -> Tensor:
        """Return (B, N_DEVICE_COSTS) of the devices with vectors (B, device width); zero where one is not known."""
        return recalled(vectors, self.known, self.own)


def simulated_times(codes: Tensor, simulated: int, quantities: KernelQuantities, log_analytic_s: Tensor) -> Tensor:
    """Return log-seconds of simulated cycles and their distance from the analytic ones, (B, 2); 0 without a code.

    ``simulated``: the column of these cycles.
    """
    clock_hz = 1e6 * quantities.device("clock_mhz")[:, 0]
    log_code_s = codes[:, simulated] * math.log(2.0) - clock_hz.log()
    pair = torch.stack([log_code_s, log_code_s - log_analytic_s.to(log_code_s.dtype)], dim=1)
    return pair * codes[:, :1]


def _minimised(loss: Callable[[], Tensor], values: Sequence[Tensor], rate: float, steps: int) -> bool:
    """Adam with a falling rate moves ``values``; False where it ended in one that is not finite."""
    optimiser = torch.optim.Adam([value.requires_grad_(True) for value in values], lr=rate)
    with torch.enable_grad():
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = rate * (1 - step / steps) + 1e-4
            optimiser.zero_grad()
            loss().backward()
            optimiser.step()
    return all(bool(value.requires_grad_(False).isfinite().all()) for value in values)


def _inputs(codes: Tensor, parts: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, N_INPUTS) amounts, those of memory in cycles, as one core of the device sees them; (B,) log of its clock."""
    quantities = KernelQuantities(batch.kernels, batch.device_specs, batch.kinds)
    clock_hz = _clock_hz(batch)
    amounts = torch.exp2(codes[:, CODE_COLUMNS]) - 1
    slower = _TYPICAL_ISSUE_WIDTH / quantities.device("issue_width")
    amounts = amounts * torch.where(ISSUED.to(amounts.device), slower, 1.0)
    amounts[:, GATHERS] *= quantities.device("gather_cycles_per_lane")
    # Costs are never negative: what is saved of the simulated cycles enters as what is left.
    amounts[:, OVERLAP] = (amounts[:, CYCLES] - amounts[:, OVERLAP]).clamp_min(0)
    cores = cores_used(quantities, batch.kernel_mask)
    memory = (parts[:, :, MEMORY_COLUMNS] * batch.kernel_mask[..., None]).sum(1) * clock_hz[:, None]
    return torch.cat([amounts / cores[:, None], memory], dim=1), clock_hz.log()


def _clock_hz(batch: Batch) -> Tensor:
    """(B,) cycles in a second."""
    return 1e6 * KernelQuantities(batch.kernels, batch.device_specs, batch.kinds).device("clock_mhz")[:, 0]


def _log_cycles(
    inputs: Tensor, log_cost: Tensor, sharpness: Tensor, log_overhead: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """(B, N_INPUTS) amounts, (B or 1, N_DEVICE_COSTS) -> (B,) log-cycles, (B, N_RESOURCES) of each resource."""
    logs = ((inputs * own[:, :N_INPUTS].exp()) @ log_cost.exp().T + 1e-3).log()
    power = 1 + softplus(sharpness)
    total = torch.logaddexp((power * logs).logsumexp(dim=1) / power, log_overhead + own[:, _OVERHEAD])
    return total + own[:, _SCALE], logs + own[:, _SCALE, None]


def _error(inputs: Tensor, labels: Tensor, *costs: Tensor) -> Tensor:
    return huber_loss(_log_cycles(inputs, *costs)[0], labels, delta=_HUBER) / _HUBER


def _ridge(own: Tensor, n_programs: int) -> Tensor:
    return _DEVICE_RIDGE * own.square().sum() / n_programs


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
