"""EagerPrior: the roofline of a framework operator with a few numbers fitted for each family of kernels.

Beside the shared numbers each device of the training has *its own*, held near them by a ridge: what its host takes to
dispatch a call, and the shares of its peak and bandwidth that each family sustains, which no datasheet tells. A device
that the training lacks borrows those of devices like it, and so does a family of which a device has no call. What
kernels of halves sustain otherwise is shared by all devices: few were measured with them. They also keep these
constants out of the shapes' share of the error, so that what corrects this prior can learn the shapes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, pad

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.model.eager_inputs import EagerQuantities
from cdmpp.model.known_devices import borrowed, remember
from cdmpp.operators.operator import FAMILIES
from cdmpp.operators.operator_vector import OPERATOR_NAMES

_FLOOR, _COMPUTE, _MEMORY, _POWER = range(4)
"""Natural logs: seconds of a call; shares of peak and bandwidth; TFLOP/s a watt at 12 nm."""
_START = (-11.0, -0.3, -0.3, -2.5)
_SHRINK_START, _SHARP_START = 0.7, 1.0
_CELL_PROGRAMS = 1000
"""Programs of one device and family that a fit weighs; each such cell counts alike."""
_LEAST = 0.01
"""Share of the calls of a device and family that may take less than its floor."""
_HUBER, _RIDGE, _OWN_RIDGE, _STEPS = 0.2, 0.003, 0.3, 150
_NOISE = 0.1
"""Log-seconds by which a call may miss what its device's numbers say, the rest being none of their business."""
_FEWEST_DEVICES, _USUAL_SPREAD, _LEAST_SPREAD = 3, 0.3, 0.2
Terms = tuple[Tensor, Tensor, Tensor, Tensor]
"""The tensors that ``_terms`` returns."""
_FAMILY_COLUMNS = [OPERATOR_NAMES.index(f"family_{name}") for name in FAMILIES]
"""Columns of operator vectors; in ``Batch.codes`` a flag stands before them."""


class EagerPrior(nn.Module):
    """The time is max(flops / rate, bytes / bandwidth), softly, plus the floor that dispatching a call takes.

    The rate is the share of the peak that the family reaches, or what the board's power allows of it.
    """

    numbers: Tensor
    """(families, 4)"""
    shared: Tensor
    """(2,) how much a finer process saves, and how sharply the slowest resource decides."""
    known: Tensor
    """(max_devices, device width) vectors of the devices with numbers of their own; infinite: a free place."""
    own: Tensor
    """(max_devices, families, 4) what is added to ``numbers`` on these devices."""
    halves: Tensor
    """(families, 4) what is added to both for types of less than four bytes; nothing to the floor."""

    def __init__(self, max_devices: int, device_width: int) -> None:
        """``max_devices`` can have numbers of their own; where training has more, all share theirs."""
        super().__init__()
        self.register_buffer("numbers", torch.tensor(_START).repeat(len(FAMILIES), 1))
        self.register_buffer("shared", torch.tensor([_SHRINK_START, _SHARP_START]))
        self.register_buffer("known", torch.full((max_devices, device_width), torch.inf))
        self.register_buffer("own", torch.zeros(max_devices, len(FAMILIES), 4))
        self.register_buffer("halves", torch.zeros(len(FAMILIES), 4))

    def forward(self, batch: Batch) -> Tensor:
        """Return (B,) natural-log seconds."""
        terms = _terms(batch)
        own = borrowed(batch.device_vectors, self.known, self.own)
        return _log_seconds(*terms[:3], self.numbers + own + _of_halves(terms[3], self.halves), self.shared)

    def device_share(self, batch: Batch) -> Tensor:
        """Return the (B,) share of a call in which the device is busy; the rest is the floor of its host."""
        terms = _terms(batch)
        own = self.numbers + borrowed(batch.device_vectors, self.known, self.own) + _of_halves(terms[3], self.halves)
        floor = (terms[2].to(own.dtype)[:, :, None] * own).sum(1)[:, _FLOOR]
        return 1 - (floor - _log_seconds(*terms[:3], own, self.shared)).exp()

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit to the training ``rows`` (n,): a robust error of log-latency, by L-BFGS."""
        terms, labels, weights, device = _gathered(programs, _balanced(programs, rows))
        start = torch.tensor(_START, dtype=torch.float64, device=labels.device).repeat(len(FAMILIES), 1)
        start_shared = start.new_tensor([_SHRINK_START, _SHARP_START])
        devices, which = device.unique(return_inverse=True)
        numbers, shared = start.clone().requires_grad_(True), start_shared.clone().requires_grad_(True)
        own = start.new_zeros(len(devices), *start.shape).requires_grad_(True)
        halves = start.new_zeros(len(FAMILIES), 3).requires_grad_(True)
        least = _least(labels, which, terms[2].argmax(1), len(devices))
        several = 1 < len(devices) <= len(self.known)
        values = [numbers, shared, *([own] if several else []), *([halves] if bool(terms[3].any()) else [])]
        optimiser = torch.optim.LBFGS(values, lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            each = _bounded(numbers + own, least)[which] + _of_halves(terms[3], pad(halves, (1, 0)))
            difference = _log_seconds(*terms[:3], each, shared) - labels
            error = huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=_HUBER) / _HUBER
            ridge = (numbers - start).square().mean() + (shared - start_shared).square().mean()
            ridge = ridge + halves.square().mean()
            loss = (weights * error).sum() / weights.sum() + _RIDGE * ridge + _OWN_RIDGE * own.square().mean()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        if not all(bool(value.isfinite().all()) for value in values):
            return
        own = _bounded((numbers + own).detach(), least)
        numbers = _bounded(numbers.detach(), least.amax(0))
        self.numbers.copy_(numbers)
        self.shared.copy_(shared.detach())
        self.halves.copy_(pad(halves.detach(), (1, 0)))
        if len(devices) <= len(self.known):  # a single one, too: it must not take those of a device learned later
            for place, row in zip(devices.tolist(), own - numbers, strict=True):
                remember(programs.device_vectors[place], row, self.known, self.own)

    def scale_device(
        self, programs: ProgramTensors, rows: np.ndarray, correction: Tensor, weights: Tensor
    ) -> dict[str, float]:
        """Fit one device to a few ``rows`` (n,) of it; families without a call move with the rest.

        ``correction`` (n,): what the model adds to the log-seconds of this prior; ``weights`` (n,): how much each
        call tells. What devices of the training differ in is likelier. Returns factors on the shares and the floor,
        averaged over families.
        """
        terms, labels, places = _columns(programs, rows)
        correction, weights = correction[places], weights[places].double()
        vector = programs.device_vectors[programs.device_index[int(rows[0])]]
        before = (self.numbers + borrowed(vector[None], self.known, self.own)[0]).double()
        of_halves = _of_halves(terms[3], self.halves.double())
        together, apart = self._spreads()
        all_move, each_moves = labels.new_zeros(4), labels.new_zeros(len(FAMILIES), 4)
        least = _least(labels, torch.zeros_like(places), terms[2].argmax(1), 1)[0]
        values = [all_move.requires_grad_(True), each_moves.requires_grad_(True)]
        optimiser = torch.optim.LBFGS(values, lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            numbers = _bounded(before + all_move + each_moves, least) + of_halves
            difference = _log_seconds(*terms[:3], numbers, self.shared.double()) + correction - labels
            error = huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=_HUBER)
            likely = 0.5 * (all_move / together).square().sum() + 0.5 * (each_moves / apart).square().sum()
            loss = (weights * error).sum() / _NOISE**2 + likely
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)
        if not all(bool(value.isfinite().all()) for value in values):
            return {}
        numbers = _bounded((before + all_move + each_moves).detach(), least)
        remember(vector, numbers - self.numbers, self.known, self.own)
        moved = (numbers - before)[terms[2].bool().any(0)].mean(0).exp()
        return dict(zip(("floor", "compute", "bandwidth", "power"), moved.tolist(), strict=True))

    def _spreads(self) -> tuple[Tensor, Tensor]:
        """Distances of training devices from the shared numbers: (4,) all families together, (families, 4) each."""
        own = self.own[self.known.isfinite().all(1)].double()
        if len(own) < _FEWEST_DEVICES:
            return own.new_full((4,), _USUAL_SPREAD), own.new_full((len(FAMILIES), 4), _USUAL_SPREAD)
        mean = own.mean(1)
        together = mean.square().mean(0).sqrt().clamp_min(_LEAST_SPREAD)
        return together, (own - mean[:, None]).square().mean(0).sqrt().clamp_min(_LEAST_SPREAD)


def _least(labels: Tensor, device: Tensor, family: Tensor, n_devices: int) -> Tensor:
    """(devices, families) log-seconds that nearly all calls take: no floor is higher.

    Where a device has no call of a family, the most that others have; infinite where none has.
    """
    least = labels.new_full((n_devices, len(FAMILIES)), torch.inf)
    for one, other in torch.cartesian_prod(torch.arange(n_devices), torch.arange(len(FAMILIES))).tolist():
        mine = labels[(device == one) & (family == other)]
        if len(mine):
            least[one, other] = torch.quantile(mine, _LEAST)
    most = least.masked_fill(least.isinf(), -torch.inf).amax(0)
    return torch.where(least.isinf() & most.isfinite(), most, least)


def _bounded(numbers: Tensor, least: Tensor) -> Tensor:
    """(..., families, 4) with no floor above ``least`` (..., families)."""
    return torch.cat([torch.minimum(numbers[..., _FLOOR], least)[..., None], numbers[..., _FLOOR + 1 :]], dim=-1)


def families(batch: Batch) -> Tensor:
    """Return the (B,) places in ``FAMILIES``."""
    return batch.codes[:, 1:][:, _FAMILY_COLUMNS].argmax(1)


def _terms(batch: Batch) -> Terms:
    """(B, 3) seconds at full speed, (B,) log of the finer process, (B, families) which family it is, (B,) halves."""
    q = EagerQuantities(batch)
    family = batch.codes[:, 1:][:, _FAMILY_COLUMNS]
    return torch.stack([q.compute_s(), q.memory_s(), q.power_s()], dim=1), q.log_shrink(), family, q.halves()


def _of_halves(is_half: Tensor, halves: Tensor) -> Tensor:
    """(B, families, 4) of ``halves`` (families, 4) where it is one."""
    return is_half.to(halves.dtype)[:, None, None] * halves


def _log_seconds(seconds: Tensor, log_shrink: Tensor, family: Tensor, numbers: Tensor, shared: Tensor) -> Tensor:
    """``numbers``: (families, 4), or (B, families, 4) where devices differ."""
    own = (family.to(numbers.dtype)[:, :, None] * numbers).sum(1)
    costs = -own[:, [_COMPUTE, _MEMORY, _POWER]]
    costs = costs - torch.stack([0 * log_shrink, 0 * log_shrink, shared[0] * log_shrink], dim=1)
    logs = seconds.to(numbers.dtype).clamp_min(1e-12).log() + costs
    power = 1 + shared[1].exp()
    busiest = (power * logs).logsumexp(1) / power
    return torch.logaddexp(busiest, own[:, _FLOOR])


def _cells(programs: ProgramTensors, rows: np.ndarray) -> Tensor:
    """(n,) a number for each device and family."""
    index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(programs.device_index.device)
    family = programs.codes_of(rows)[:, _FAMILY_COLUMNS].argmax(1)
    return programs.device_index[index] * len(FAMILIES) + family


def _balanced(programs: ProgramTensors, rows: np.ndarray) -> np.ndarray:
    """At most ``_CELL_PROGRAMS`` of ``rows`` of each cell, always the same."""
    shuffled = np.random.default_rng(0).permutation(rows)
    cells = _cells(programs, shuffled).cpu().numpy()
    parts = [shuffled[cells == cell][:_CELL_PROGRAMS] for cell in np.unique(cells)]
    return np.sort(np.concatenate(parts))


def _gathered(programs: ProgramTensors, rows: np.ndarray) -> tuple[Terms, Tensor, Tensor, Tensor]:
    """``_terms``, log-latency (n,), weights (n,) by which every cell counts alike, device (n,)."""
    terms, labels, places = _columns(programs, rows)
    cells = _cells(programs, rows)[places]
    counts = torch.bincount(cells)
    devices = programs.device_index[torch.from_numpy(rows).to(places.device)][places]
    return terms, labels, 1.0 / counts[cells].double(), devices


@torch.no_grad()
def _columns(programs: ProgramTensors, rows: np.ndarray) -> tuple[Terms, Tensor, Tensor]:
    """``_terms``, log-latency (n,), and which of ``rows`` (n,) each is: batches have an order of their own."""
    columns = []
    for batch in ordered_batches(programs, rows):
        columns.append((*(term.double() for term in _terms(batch)), batch.log_latency.double(), batch.rows))
    *terms, labels, order = (torch.cat(column) for column in zip(*columns, strict=True))
    sorted_rows = torch.from_numpy(np.argsort(rows)).to(order.device)
    ranks = torch.searchsorted(torch.from_numpy(np.sort(rows)).to(order.device), order)
    return (terms[0], terms[1], terms[2], terms[3]), labels, sorted_rows[ranks]
