"""The default model ``cdmpp``: encoded kernels and leaves + device -> latency, on top of the analytical prior."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import STATISTICS_PROGRAMS, sample_rows
from cdmpp.model.analytic import N_BOUNDS, N_STATES, kernel_parts, kernel_states
from cdmpp.model.analytical_prior import AnalyticalPrior, masked_logsumexp
from cdmpp.model.bins import QuantileBins
from cdmpp.model.code_prior import N_CODE, CodePrior, code_inputs
from cdmpp.model.config import CdmppConfig
from cdmpp.model.device_encoder import DeviceEncoder
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.gpu_code_prior import GpuCodePrior
from cdmpp.model.kernel_quantities import KernelQuantities
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.leaf_encoder import LeafEncoder
from cdmpp.model.output import Output


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
            kernel_width += N_CODE + 2 + self.code_prior.n_resources
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
        columns = [
            (batch.leaves[batch.leaf_mask], self._kernel_inputs(batch)[0][batch.kernel_mask], batch.log_latency)
            for batch in ordered_batches(programs, sample_rows(rows, STATISTICS_PROGRAMS))
        ]
        leaves, kernels, log_latency = (torch.cat(column) for column in zip(*columns, strict=True))
        self.leaf_scaler.fit(leaves)
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

    def forward(self, batch: Batch) -> Output:
        """Add up a time for each kernel: kernels run one after the other."""
        kernels, priors = self._kernel_inputs(batch)
        device = self.device_encoder(batch.device_vectors)
        leaves = self.leaf_scaler(batch.leaves)
        scaled = self.kernel_scaler(kernels)
        kernels, leaves = self.encoder(batch, leaves, torch.cat([scaled, self.kernel_bins(scaled)], dim=-1), device)
        n_kernel = kernels.shape[1]
        belongs = batch.leaf_kernels[:, None, :] == torch.arange(n_kernel, device=priors.device)[None, :, None]
        belongs = belongs & batch.leaf_mask[:, None, :]
        own_leaves = belongs.to(leaves.dtype) @ leaves / belongs.sum(-1, keepdim=True).clamp_min(1)
        all_leaves = _masked_mean(leaves, batch.leaf_mask)
        of_program = (vector[:, None].expand(-1, n_kernel, -1) for vector in (all_leaves, device))
        hidden = self.regressor(torch.cat([kernels, own_leaves, *of_program], dim=-1))
        # In full precision also under bf16: three digits would be seen in a latency.
        with torch.autocast(hidden.device.type, enabled=False):
            correction = self.out(hidden.float())[..., 0] * self.log_scale
        per_kernel = correction + (priors if self.config.prior else self.log_mean)
        log_latency = masked_logsumexp(per_kernel, batch.kernel_mask)
        return Output(log_latency, self.label_transform(log_latency), _masked_mean(hidden, batch.kernel_mask))

    @torch.no_grad()
    def _kernel_inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Kernel vectors with what the analytic model and the code make of them; (B, K) natural-log seconds of that."""
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        times = self.prior.times(parts)
        priors = self.prior(times, batch.kinds)
        states = kernel_states(batch.kernels, batch.device_specs, batch.kinds)
        inputs = [batch.kernels, times.log(), states]
        if self.config.code:
            codes = batch.codes
            if self.training and self.config.code_dropout:
                codes = codes * (torch.rand(len(codes), 1, device=codes.device) >= self.config.code_dropout)
            analytic = masked_logsumexp(priors, batch.kernel_mask)
            by_code, shares = self.code_prior(codes, parts, batch)
            has_code = codes[:, :1] * self.code_prior.fitted
            ahead = (by_code - analytic)[:, None] * has_code
            quantities = KernelQuantities(batch.kernels, batch.device_specs, batch.kinds)
            read = code_inputs(codes, self.code_prior.simulated, quantities, analytic)
            columns = [read, by_code[:, None] * has_code, ahead, shares * has_code]
            priors = priors + ahead  # the whole moves, how it is spread over the kernels stays
            inputs.append(torch.cat(columns, dim=1)[:, None].expand(-1, times.shape[1], -1))
        return torch.cat(inputs, dim=-1), priors


def _masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    weight = mask[..., None].to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp_min(1)
