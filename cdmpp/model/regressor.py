"""The default model ``cdmpp``: encoded kernels and leaves + device -> latency, on top of the analytical prior."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import STATISTICS_PROGRAMS, sample_rows
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model.analytic import N_BOUNDS, N_STATES, kernel_parts, kernel_states
from cdmpp.model.analytical_prior import AnalyticalPrior, masked_logsumexp
from cdmpp.model.bins import QuantileBins
from cdmpp.model.code_prior import CodePrior, simulated_times
from cdmpp.model.config import CdmppConfig
from cdmpp.model.device_encoder import DeviceEncoder
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.gpu_code_prior import GpuCodePrior
from cdmpp.model.kernel_quantities import KernelQuantities
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.leaf_encoder import LeafEncoder
from cdmpp.model.output import Output
from cdmpp.model.packing import Packing, mean_by
from cdmpp.model.prior_columns import PriorColumns

_CODE_COLUMNS, _AHEAD = 4, 3
"""Columns of ``PriorColumns.code`` before the shares; the one by which its time moves the analytic one."""


class CdmppModel(nn.Module):
    """The model takes any number of leaves and kernels; every statistic it needs is a buffer."""

    log_mean: Tensor
    log_scale: Tensor

    def __init__(self, config: CdmppConfig, leaf_width: int, kernel_width: int, device_width: int) -> None:
        super().__init__()
        self.config = config
        kernel_width += N_BOUNDS + N_STATES
        if config.code:
            on_cpu = config.code_kind == "cpu"
            self.code_prior = CodePrior(config.device_costs, device_width) if on_cpu else GpuCodePrior()
            kernel_width += 1 + CODE_WIDTH + self.n_code_columns
        self.leaf_scaler = FeatureScaler(leaf_width, config.clip)
        self.kernel_scaler = FeatureScaler(kernel_width, config.clip)
        self.kernel_bins = QuantileBins(kernel_width, config.bins)
        self.prior = AnalyticalPrior()
        self.label_transform = LabelTransform(config.label)
        # Of log-latency, in which kernels are corrected and added up whatever the label is.
        self.register_buffer("log_mean", torch.zeros(()))
        self.register_buffer("log_scale", torch.ones(()))
        self.device_encoder = DeviceEncoder(device_width, config.width)
        self.encoder = LeafEncoder(leaf_width, kernel_width * (1 + config.bins), config)
        width, hidden = config.width, config.hidden
        self.regressor = nn.Sequential(
            nn.Linear(4 * width, hidden), nn.GELU(), nn.Dropout(config.dropout), nn.Linear(hidden, hidden), nn.GELU()
        )
        self.out = nn.Linear(hidden, 1)
        # Start at the prior: the first steps then correct it instead of finding the scale of time.
        with torch.no_grad():
            self.out.weight.mul_(0.1)
            self.out.bias.zero_()

    @torch.no_grad()
    def fit_statistics(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit scalers, prior and label transform to the training programs ``rows`` (n,), and to no other."""
        self.prior.fit(programs, rows)  # first: the kernel inputs carry its times
        if self.config.code:
            self.code_prior.fit(programs, rows)
        seen = torch.from_numpy(np.asarray(rows, np.int64)).to(programs.device_index.device)
        self.device_encoder.fit(programs.device_vectors[programs.device_index[seen].unique()])
        columns = []
        for batch in ordered_batches(programs, sample_rows(rows, STATISTICS_PROGRAMS)):
            kernels, _ = self._kernel_inputs(batch, self.prior_columns(batch))
            columns.append((batch.leaves[batch.leaf_mask], kernels[batch.kernel_mask], batch.log_latency))
        leaves, kernels, log_latency = (torch.cat(column) for column in zip(*columns, strict=True))
        del columns  # each of the next steps takes as much again
        self.leaf_scaler.fit(leaves)
        del leaves
        self.kernel_scaler.fit(kernels)
        self.kernel_bins.fit(self.kernel_scaler(kernels))
        self.label_transform.fit(log_latency)
        self.log_mean.copy_(log_latency.double().mean())
        self.log_scale.copy_(log_latency.double().std(correction=0).clamp_min(1e-3))

    @torch.no_grad()
    def learn_device(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Take in what the labelled ``rows`` (n,) tell of a new device, before any weight moves."""
        self.device_encoder.open_columns(programs.device_vectors)
        if self.config.code and isinstance(self.code_prior, CodePrior):
            self.code_prior.learn_device(programs, rows)

    @property
    def can_scale(self) -> bool:
        """Return True where it has costs of single devices; those of a GPU's code are shared."""
        return bool(self.config.code) and isinstance(self.code_prior, CodePrior)

    @torch.no_grad()
    def scale_device(self, programs: ProgramTensors, rows: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Fit factors of the one device of the labelled ``rows`` (n,), see ``CodePrior.scale_device``."""
        assert isinstance(self.code_prior, CodePrior)  # a GPU's costs are not scaled by a few programs
        corrections, order = [], []
        for batch in ordered_batches(programs, rows):
            parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
            by_code, _ = self.code_prior(batch.codes, parts, batch)
            coded = batch.codes[:, 0] > 0
            corrections.append((self(batch).log_latency - by_code)[coded].double())
            order.append(batch.rows[coded].cpu().numpy())
        shares = torch.as_tensor(weights[np.concatenate(order)]).to(corrections[0])
        return self.code_prior.scale_device(programs, rows, torch.cat(corrections), shares)

    def forward(self, batch: Batch, columns: PriorColumns | None = None) -> Output:
        """Add up a time for each kernel: kernels run one after the other.

        ``columns``: what ``prior_columns`` says of ``batch``, where it is known.
        """
        kernels, priors = self._kernel_inputs(batch, self.prior_columns(batch) if columns is None else columns)
        packed = Packing.of(batch)
        device = self.device_encoder(batch.device_vectors)
        leaves = self.leaf_scaler(batch.leaves[batch.leaf_mask])
        scaled = self.kernel_scaler(kernels[batch.kernel_mask])
        inputs = torch.cat([scaled, self.kernel_bins(scaled)], dim=-1)
        kernel, leaf = self.encoder(packed, leaves, inputs, device)
        own_leaves = mean_by(leaf, packed.kernel_of_leaf, len(kernel))
        all_leaves = mean_by(leaf, packed.program_of_leaf, len(priors))
        of_program = (vector.index_select(0, packed.program_of_kernel) for vector in (all_leaves, device))
        hidden = self.regressor(torch.cat([kernel, own_leaves, *of_program], dim=-1))
        # In full precision also under bf16: three digits would be seen in a latency.
        with torch.autocast(hidden.device.type, enabled=False):
            correction = self.out(hidden.float())[..., 0] * self.log_scale
        per_kernel = torch.full_like(priors, -torch.inf).masked_scatter(batch.kernel_mask, correction)
        per_kernel = per_kernel + (priors if self.config.prior else self.log_mean)
        log_latency = masked_logsumexp(per_kernel, batch.kernel_mask)
        mean_hidden = mean_by(hidden, packed.program_of_kernel, len(priors))
        return Output(log_latency, self.label_transform(log_latency), mean_hidden)

    @torch.no_grad()
    def prior_columns(self, batch: Batch) -> PriorColumns:
        """Return what the fitted priors say of ``batch``; the weights that are trained have no part in it."""
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        times = self.prior.times(parts)
        log_s = self.prior(times, batch.kinds)
        states = kernel_states(batch.kernels, batch.device_specs, batch.kinds)
        code = log_s.new_zeros(len(log_s), 0)
        if self.config.code:
            analytic = masked_logsumexp(log_s, batch.kernel_mask)
            by_code, shares = self.code_prior(batch.codes, parts, batch)
            has_code = batch.codes[:, :1] * self.code_prior.fitted
            quantities = KernelQuantities(batch.kernels, batch.device_specs, batch.kinds)
            read = simulated_times(batch.codes, self.code_prior.simulated, quantities, analytic)
            ahead = (by_code - analytic)[:, None] * has_code
            code = torch.cat([read, by_code[:, None] * has_code, ahead, shares * has_code], dim=1)
        return PriorColumns(torch.cat([times.log(), states], dim=-1), log_s, code)

    @property
    def n_code_columns(self) -> int:
        """Return the width of ``PriorColumns.code``."""
        return _CODE_COLUMNS + self.code_prior.n_resources if self.config.code else 0

    @torch.no_grad()
    def _kernel_inputs(self, batch: Batch, columns: PriorColumns) -> tuple[Tensor, Tensor]:
        """Kernel vectors with what the priors make of them; (B, K) natural-log seconds of that."""
        inputs, priors = [batch.kernels, columns.kernels], columns.log_s
        if self.config.code:
            code = torch.cat([batch.codes, columns.code], dim=1)
            if self.training and self.config.code_dropout:
                code = code * (torch.rand(len(code), 1, device=code.device) >= self.config.code_dropout)
            ahead = code[:, batch.codes.shape[1] + _AHEAD, None]
            priors = priors + ahead  # the whole moves, how it is spread over the kernels stays
            inputs.append(code[:, None].expand(-1, priors.shape[1], -1))
        return torch.cat(inputs, dim=-1), priors
