"""EagerPrior: the roofline of a framework operator with a few numbers fitted for each family of kernels.

Beside the shared numbers each device of the training has *its own*, held near them by a ridge: what its host takes to
dispatch a call, and the shares of its peak and bandwidth that each family sustains, which no datasheet tells. A device
that the training lacks borrows those of devices like it, and so does a family of which a device has no call. What
kernels of halves sustain otherwise is shared by all devices: few were measured with them. They also keep these
constants out of the shapes' share of the error, so that what corrects this prior can learn the shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, pad, softplus

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.model.eager_inputs import EagerQuantities
from cdmpp.model.known_devices import borrowed, remember
from cdmpp.operators.operator import FAMILIES
from cdmpp.operators.operator_vector import OPERATOR_NAMES

_FLOOR, _COMPUTE, _MEMORY, _POWER, _CACHE = range(5)
"""Natural logs: seconds of a call; shares of peak, bandwidth; TFLOP/s a watt at 12 nm; share of the cache's ports."""
_START = (-11.0, -0.3, -0.3, -2.5, -1.2)
_SHARED_START = (0.7, 1.0, 0.0, 0.7)
"""How much a finer process saves, how sharply the slowest resource decides; log-bytes over those of the second-level
cache up to which a repeated call finds all there, and the log of the power by which the share that it finds falls."""
_EDGE, _LEAST_OVER = 16.0, 1e-6
"""How sharp the edge is, in log-bytes; the least log of a share that is missed, so that none has an infinite log."""
NO_CACHE = -50.0
"""Third of the shared numbers of a prior that was stored before it knew of caches."""
_CELL_PROGRAMS = 1000
"""Programs of one device and family that a fit weighs; each such cell counts alike."""
_LEAST = 0.01
"""Share of the calls of a device and family that may take less than its floor."""
_HUBER, _RIDGE, _OWN_RIDGE, _STEPS = 0.2, 0.003, 0.3, 150
_NOISE = 0.1
"""Log-seconds by which a call may miss what its device's numbers say, the rest being none of their business."""
_FEWEST_DEVICES, _USUAL_SPREAD, _LEAST_SPREAD = 3, 0.3, 0.2
FAMILY_COLUMNS = [OPERATOR_NAMES.index(f"family_{name}") for name in FAMILIES]
"""Columns of operator vectors; in ``Batch.codes`` a flag stands before them."""


class Terms(NamedTuple):
    """These are the quantities from which the prior of B calls follows."""

    seconds: Tensor
    """(B, 4) at full speed: of the arithmetic, of the memory, at a watt, of the second-level cache."""
    log_shrink: Tensor
    """(B,) log of how much finer the process is."""
    log_fill: Tensor
    """(B,) log of the call's bytes over the second-level cache."""
    family: Tensor
    """(B, families) 1 where it is."""
    is_half: Tensor
    """(B,) elements of less than four bytes."""


class EagerPrior(nn.Module):
    """The time is max(flops / rate, bytes / bandwidth), softly, plus the floor that dispatching a call takes.

    The rate is the share of the peak that the family reaches, or what the board's power allows of it. Bytes come from
    memory, or from a GPU's second-level cache where a repeated call finds them there.
    """

    numbers: Tensor
    """(families, 5)"""
    shared: Tensor
    """(4,) see ``_SHARED_START``."""
    known: Tensor
    """(max_devices, device width) vectors of the devices with numbers of their own; infinite: a free place."""
    own: Tensor
    """(max_devices, families, 5) what is added to ``numbers`` on these devices."""
    halves: Tensor
    """(families, 5) what is added to both for types of less than four bytes; nothing to the floor."""

    def __init__(self, max_devices: int, device_width: int) -> None:
        """``max_devices`` can have numbers of their own; where training has more, all share theirs."""
        super().__init__()
        self.register_buffer("numbers", torch.tensor(_START).repeat(len(FAMILIES), 1))
        self.register_buffer("shared", torch.tensor(_SHARED_START))
        self.register_buffer("known", torch.full((max_devices, device_width), torch.inf))
        self.register_buffer("own", torch.zeros(max_devices, len(FAMILIES), len(_START)))
        self.register_buffer("halves", torch.zeros(len(FAMILIES), len(_START)))

    def forward(self, batch: Batch) -> Tensor:
        """Return (B,) natural-log seconds."""
        terms = _terms(batch)
        own = borrowed(batch.device_vectors, self.known, self.own)
        return _log_seconds(terms, self.numbers + own + _of_halves(terms.is_half, self.halves), self.shared)

    def device_share(self, batch: Batch) -> Tensor:
        """Return the (B,) share of a call in which the device is busy; the rest is the floor of its host."""
        terms = _terms(batch)
        own = self.numbers + borrowed(batch.device_vectors, self.known, self.own)
        own = own + _of_halves(terms.is_half, self.halves)
        floor = (terms.family.to(own.dtype)[:, :, None] * own).sum(1)[:, _FLOOR]
        return 1 - (floor - _log_seconds(terms, own, self.shared)).exp()

    def fit(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit to the training ``rows`` (n,): a robust error of log-latency, by L-BFGS."""
        terms, labels, weights, device = _gathered(programs, _balanced(programs, rows))
        start = torch.tensor(_START, dtype=torch.float64, device=labels.device).repeat(len(FAMILIES), 1)
        start_shared = start.new_tensor(_SHARED_START)
        devices, which = device.unique(return_inverse=True)
        numbers, shared = start.clone().requires_grad_(True), start_shared.clone().requires_grad_(True)
        own = start.new_zeros(len(devices), *start.shape).requires_grad_(True)
        halves = start.new_zeros(len(FAMILIES), len(_START) - 1).requires_grad_(True)
        least = _least(labels, which, terms.family.argmax(1), len(devices))
        several = 1 < len(devices) <= len(self.known)
        values = [numbers, shared, *([own] if several else []), *([halves] if bool(terms.is_half.any()) else [])]
        optimiser = torch.optim.LBFGS(values, lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            each = _bounded(numbers + own, least)[which] + _of_halves(terms.is_half, pad(halves, (1, 0)))
            difference = _log_seconds(terms, each, shared) - labels
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
        of_halves = _of_halves(terms.is_half, self.halves.double())
        together, apart = self._spreads()
        all_move, each_moves = labels.new_zeros(len(_START)), labels.new_zeros(len(FAMILIES), len(_START))
        least = _least(labels, torch.zeros_like(places), terms.family.argmax(1), 1)[0]
        values = [all_move.requires_grad_(True), each_moves.requires_grad_(True)]
        optimiser = torch.optim.LBFGS(values, lr=0.5, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            numbers = _bounded(before + all_move + each_moves, least) + of_halves
            difference = _log_seconds(terms, numbers, self.shared.double()) + correction - labels
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
        moved = (numbers - before)[terms.family.bool().any(0)].mean(0).exp()
        return dict(zip(("floor", "compute", "bandwidth", "power", "cache"), moved.tolist(), strict=True))

    def _spreads(self) -> tuple[Tensor, Tensor]:
        """Distances of training devices from the shared numbers: (5,) all families together, (families, 5) each."""
        own = self.own[self.known.isfinite().all(1)].double()
        if len(own) < _FEWEST_DEVICES:
            return own.new_full((len(_START),), _USUAL_SPREAD), own.new_full(
                (len(FAMILIES), len(_START)), _USUAL_SPREAD
            )
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
    """(..., families, 5) with no floor above ``least`` (..., families)."""
    return torch.cat([torch.minimum(numbers[..., _FLOOR], least)[..., None], numbers[..., _FLOOR + 1 :]], dim=-1)


def families(batch: Batch) -> Tensor:
    """Return the (B,) places in ``FAMILIES``."""
    return batch.codes[:, 1:][:, FAMILY_COLUMNS].argmax(1)


def _terms(batch: Batch) -> Terms:
    q = EagerQuantities(batch)
    seconds = torch.stack([q.compute_s(), q.memory_s(), q.power_s(), q.cache_s()], dim=1)
    return Terms(seconds, q.log_shrink(), q.log_fill(), batch.codes[:, 1:][:, FAMILY_COLUMNS], q.halves())


def _of_halves(is_half: Tensor, halves: Tensor) -> Tensor:
    """(B, families, 5) of ``halves`` (families, 5) where it is one."""
    return is_half.to(halves.dtype)[:, None, None] * halves


def _log_seconds(terms: Terms, numbers: Tensor, shared: Tensor) -> Tensor:
    """``numbers``: (families, 5), or (B, families, 5) where devices differ."""
    own = (terms.family.to(numbers.dtype)[:, :, None] * numbers).sum(1)
    full = terms.seconds.to(numbers.dtype).clamp_min(1e-12).log()
    compute, memory, power, cache = (full - own[:, [_COMPUTE, _MEMORY, _POWER, _CACHE]]).unbind(1)
    over = softplus(terms.log_fill.to(numbers.dtype) - shared[2], _EDGE)
    log_found = -(shared[3].exp() * over).clamp_min(_LEAST_OVER)
    log_missed = (-torch.expm1(log_found)).log()
    moved = torch.logaddexp(log_missed + memory, log_found + torch.minimum(cache, memory))
    logs = torch.stack([compute, moved, power - shared[0] * terms.log_shrink.to(numbers.dtype)], dim=1)
    sharpness = 1 + shared[1].exp()
    busiest = (sharpness * logs).logsumexp(1) / sharpness
    return torch.logaddexp(busiest, own[:, _FLOOR])


def _cells(programs: ProgramTensors, rows: np.ndarray) -> Tensor:
    """(n,) a number for each device and family."""
    index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(programs.device_index.device)
    family = programs.codes_of(rows)[:, FAMILY_COLUMNS].argmax(1)
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
    batches = list(ordered_batches(programs, rows))
    columns = zip(*(_terms(batch) for batch in batches), strict=True)
    terms = Terms(*(torch.cat(column).double() for column in columns))
    labels, order = torch.cat([b.log_latency for b in batches]).double(), torch.cat([b.rows for b in batches])
    sorted_rows = torch.from_numpy(np.argsort(rows)).to(order.device)
    ranks = torch.searchsorted(torch.from_numpy(np.sort(rows)).to(order.device), order)
    return terms, labels, sorted_rows[ranks]
