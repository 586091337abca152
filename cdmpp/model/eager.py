"""EagerModel: the latency of calls of framework operators, as a correction of their fitted roofline."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import STATISTICS_PROGRAMS, sample_rows
from cdmpp.devices import Device
from cdmpp.model.bins import QuantileBins
from cdmpp.model.config import EagerConfig
from cdmpp.model.doubled_sizes import MOST_SIZES, doubled_sizes
from cdmpp.model.eager_inputs import N_INPUTS, EagerQuantities, eager_inputs, fits
from cdmpp.model.eager_prior import FAMILY_COLUMNS, EagerPrior, families
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.known_devices import places
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.output import Output
from cdmpp.operators.operator import ELEMENT_BYTES, FAMILIES, LEARNED
from cdmpp.operators.operator_vector import OPERATOR_NAMES

_KIND_COLUMNS = [OPERATOR_NAMES.index(f"is_{name}") for name in LEARNED]
_BYTES_COLUMN = OPERATOR_NAMES.index("element_bytes")
_TAIL = 0.01
"""Share of a family's training programs beyond either end of the range in which the correction follows an input."""
_FASTER = 0.9
"""No measured convolution says that one with a size doubled is faster than this share; products of batches do."""
_WIDTHS = sorted(set(ELEMENT_BYTES.values()))


class EagerModel(nn.Module):
    """A perceptron corrects an analytical prior: nobody knows before which kernel a framework operator takes."""

    log_scale: Tensor
    range: Tensor
    """(families, 2, N_INPUTS) lowest and highest value of each scaled input that the correction follows."""
    learned: Tensor
    """(max_devices, kinds, widths) 1 where the training has such an operator of that element width on a device.

    Devices stand as in ``prior.known``; those that have no place there share the first.
    """
    cached: Tensor
    """(max_devices, families) 1 where such a call of the training found all its data in the second-level cache."""

    def __init__(self, config: EagerConfig, device_width: int) -> None:
        super().__init__()
        self.config = config
        self.prior = EagerPrior(config.device_costs, device_width)
        self.scaler = FeatureScaler(N_INPUTS, config.clip)
        self.register_buffer("range", torch.tensor([[-config.clip], [config.clip]]).repeat(len(FAMILIES), 1, N_INPUTS))
        self.bins = QuantileBins(N_INPUTS, config.bins)
        self.label_transform = LabelTransform("log")
        self.register_buffer("log_scale", torch.ones(()))
        self.register_buffer("learned", torch.zeros(config.device_costs, len(LEARNED), len(_WIDTHS)))
        self.register_buffer("cached", torch.zeros(config.device_costs, len(FAMILIES)))
        widths = [N_INPUTS * (1 + config.bins), *[config.hidden] * config.layers]
        steps = (
            (nn.Linear(a, b), nn.SiLU(), nn.Dropout(config.dropout))
            for a, b in zip(widths[:-1], widths[1:], strict=True)
        )
        self.perceptron = nn.Sequential(*(layer for step in steps for layer in step))
        self.out = nn.Linear(config.hidden, 1)
        with torch.no_grad():  # start at the prior
            self.out.weight.mul_(0.1)
            self.out.bias.zero_()

    @torch.no_grad()
    def fit_statistics(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit prior and scalers to the training programs ``rows`` (n,), and to no other."""
        self.fit_prior(programs, rows)
        columns = [
            (eager_inputs(EagerQuantities(batch)), batch.log_latency, self.prior(batch), families(batch))
            for batch in ordered_batches(programs, sample_rows(rows, STATISTICS_PROGRAMS))
        ]
        inputs, log_latency, priors, family = (torch.cat(column) for column in zip(*columns, strict=True))
        self.scaler.fit(inputs)
        scaled = self.scaler(inputs)
        tails = torch.tensor([_TAIL, 1 - _TAIL]).to(scaled)
        for one in family.unique():
            self.range[one] = torch.quantile(scaled[family == one], tails, dim=0)
        self.bins.fit(scaled)
        self.label_transform.fit(log_latency)
        self.log_scale.copy_((log_latency - priors).double().std(correction=0).clamp_min(1e-3))

    @torch.no_grad()
    def fit_prior(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit the prior only to the training ``rows`` (n,), and note what they have of each device."""
        self.prior.fit(programs, rows)
        self.learned.zero_()
        self.cached.zero_()
        for batch in ordered_batches(programs, rows):
            device = places(batch.device_vectors, self.prior.known).clamp_min(0)
            self.learned[device, *_what(batch.codes[:, 1:])] = 1
            inside = EagerQuantities(batch).in_cache()
            self.cached[device[inside], families(batch)[inside]] = 1

    @property
    def can_scale(self) -> bool:
        """Return True: the prior has numbers of single devices."""
        return True

    @torch.no_grad()
    def scale_device(self, programs: ProgramTensors, rows: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Fit the one device of the labelled ``rows`` (n,), see ``EagerPrior.scale_device``."""
        correction = torch.empty(len(rows), dtype=torch.float64)
        places = {int(row): place for place, row in enumerate(rows)}
        for batch in ordered_batches(programs, rows):
            chosen = [places[int(row)] for row in batch.rows]
            correction[chosen] = (self(batch).log_latency - self.prior(batch)).double().cpu()
        here = programs.device_index.device
        return self.prior.scale_device(programs, rows, correction.to(here), torch.from_numpy(weights).to(here))

    def never_measured(self, codes: np.ndarray) -> np.ndarray:
        """Return (n,) True: training has no such operator and type; ``codes`` (n, CODE_WIDTH) operator vectors."""
        return ~self._learned(codes).any(0).cpu().numpy()

    def measured_elsewhere(self, codes: np.ndarray, device_vector: np.ndarray) -> np.ndarray:
        """Return (n,) True: training has such operators and type, but not on the device of ``device_vector``.

        Nowhere true of a device that has no numbers of its own in the prior.
        """
        learned = self._learned(codes)
        place = int(places(torch.from_numpy(device_vector)[None].to(self.prior.known), self.prior.known))
        here = learned[place] if place >= 0 else learned.any(0)
        return (learned.any(0) & ~here).cpu().numpy()

    def only_cached(self, codes: np.ndarray, device: Device) -> np.ndarray:
        """Return (n,) True: a GPU's second-level cache holds all data of the call, and of no such one that was trained.

        ``codes`` (n, CODE_WIDTH) operator vectors. Nowhere true of a device that has no numbers of its own in the
        prior, and of calls whose data are few.
        """
        vectors = torch.from_numpy(np.asarray(codes, np.float32)).to(self.cached.device)
        place = int(places(torch.from_numpy(device.vector())[None].to(self.prior.known), self.prior.known))
        if place < 0 or device.kind == "cpu" or not device.spec["l2_kb"]:
            return np.zeros(len(vectors), bool)
        known = self.cached[place, vectors[:, FAMILY_COLUMNS].argmax(1)] != 0
        return (fits(vectors, 1024 * device.spec["l2_kb"]) & ~known).cpu().numpy()

    def _learned(self, codes: np.ndarray) -> Tensor:
        """(max_devices, n) True where the training has such an operator on the device."""
        kinds, widths = _what(torch.from_numpy(np.asarray(codes, np.float32)).to(self.learned.device))
        return self.learned[:, kinds, widths] != 0

    def forward(self, batch: Batch, is_part: bool = False) -> Output:
        """Predict the latency of operators; a program without an operator vector has no answer here.

        ``is_part``: of a convolution, say nothing of how long one of half the size takes.
        """
        # Beyond the sizes of its training only the prior goes on; the correction stays that of the largest ones.
        low, high = self.range[families(batch)].unbind(1)
        quantities = EagerQuantities(batch)
        scaled = self.scaler(eager_inputs(quantities)).clamp(low, high)
        hidden = self.perceptron(torch.cat([scaled, self.bins(scaled)], dim=-1))
        with torch.autocast(hidden.device.type, enabled=False):
            correction = self.out(hidden.float())[..., 0] * self.log_scale
        least = quantities.least_s().log()
        log_latency = torch.maximum(self.prior(batch).to(correction.dtype) + correction, least.to(correction.dtype))
        if not self.training and not is_part:
            log_latency = self._no_faster_doubled(batch, log_latency)
        return Output(log_latency, self.label_transform(log_latency), hidden)

    def _no_faster_doubled(self, batch: Batch, log_latency: Tensor) -> Tensor:
        """Let no convolution take under ``_FASTER`` of what one takes that has half as much of one size."""
        convolutions = (families(batch) == FAMILIES.index("conv")).nonzero()[:, 0]
        if not len(convolutions):
            return log_latency
        own, found = Batch(*(column[convolutions] for column in batch)), log_latency.clone()
        for place in range(MOST_SIZES):
            choice = own.codes.new_full((len(convolutions),), (place + 0.5) / MOST_SIZES)
            vectors, is_one = doubled_sizes(own.codes[:, 1:], choice, 0.5)
            if is_one.any():
                halves = own._replace(codes=torch.cat([own.codes[:, :1], vectors], dim=1))
                half = self(Batch(*(column[is_one] for column in halves)), True).log_latency + math.log(_FASTER)
                rows = convolutions[is_one]
                found[rows] = torch.maximum(found[rows], half)
        return found


def _what(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) places in ``LEARNED`` and in ``_WIDTHS`` of operator vectors (n, *)."""
    element_bytes = torch.exp2(vectors[:, _BYTES_COLUMN]) - 1
    widths = (element_bytes[:, None] - torch.tensor(_WIDTHS).to(element_bytes)).abs().argmin(1)
    return vectors[:, _KIND_COLUMNS].argmax(1), widths
