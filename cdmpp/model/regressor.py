"""The default model ``cdmpp``: encoded kernels and leaves + device -> latency, anchored by the analytic time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import STATISTICS_PROGRAMS, sample_rows
from cdmpp.errors import CdmppError
from cdmpp.model.analytic import N_BOUNDS, N_STATES, kernel_parts, kernel_states
from cdmpp.model.anchor import Anchor, masked_logsumexp
from cdmpp.model.bins import QuantileBins
from cdmpp.model.bounds import DEPTH, SHARE, WIDTH, check_bounds
from cdmpp.model.code_anchor import N_RESOURCES, CodeAnchor
from cdmpp.model.code_inputs import N_CODE, code_inputs
from cdmpp.model.device_encoder import DeviceEncoder
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.leaf_encoder import POSITIONS, Encoded, LeafEncoder
from cdmpp.model.loop_sequence import LOOPS

HEADS = ("pooled", "kernel_sum")
_BOUNDS = {
    "width": WIDTH,
    "layers": DEPTH,
    "heads": WIDTH,
    "feedforward": WIDTH,
    "dropout": SHARE,
    "hidden": WIDTH,
    "clip": (1e-3, 1e6),
    "feature_dropout": SHARE,
    "bins": (0, 256),
    "code_dropout": (0.0, 1.0),
    "own_costs": (0, 1024),
}


class Output(NamedTuple):
    log_latency: Tensor
    """(B,) natural-log seconds."""
    label: Tensor
    """(B,) the same in the standardised units of the label transform."""
    hidden: Tensor
    """(B, H) last hidden vector of the regressor: what domain losses compare."""


@dataclass(frozen=True)
class CdmppConfig:
    """Architecture of the default model."""

    name: str = "cdmpp"
    width: int = 128
    layers: int = 2
    heads: int = 4
    feedforward: int = 256
    dropout: float = 0.0
    hidden: int = 256
    """Width of the regressor."""
    head: str = "kernel_sum"
    """``pooled``: one number from mean and max over tokens. ``kernel_sum``: one per kernel, summed as times."""
    positions: str = "preorder"
    """How the place of a leaf in the tree is told, see ``leaf_encoder.POSITIONS``."""
    loops: str = "flat"
    """How the loops around a leaf are read, see ``loop_sequence.LOOPS``."""
    label: str = "log"
    anchor: bool = True
    """Predict the difference to the analytic time rather than the latency itself."""
    clip: float = 6.0
    """Standardised features are clipped here, so that an unseen size cannot run away."""
    feature_dropout: float = 0.0
    """Share of input columns silenced at random for a program while training: no single feature is relied upon."""
    bins: int = 8
    """Quantile bins that every number of a kernel is also given as, see ``QuantileBins``; 0 is none."""
    code: bool = True
    """Read code vectors (``cdmpp.machine_code``) where programs have them."""
    code_dropout: float = 0.2
    """Share of programs whose code vector is hidden while training: the model must do without, too."""
    code_anchor: bool = True
    """Start from the time that a code vector tells (``CodeAnchor``) where there is one, instead of the analytic one."""
    own_costs: int = 0
    """Devices at most that have costs of their own in it, beside the shared ones."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        if self.head not in HEADS:
            raise CdmppError(f"model.head is {self.head!r}; one of {', '.join(HEADS)}")
        if self.positions not in POSITIONS:
            raise CdmppError(f"model.positions is {self.positions!r}; one of {', '.join(POSITIONS)}")
        if self.loops not in LOOPS:
            raise CdmppError(f"model.loops is {self.loops!r}; one of {', '.join(LOOPS)}")
        if self.width % self.heads or self.width % 2:
            raise CdmppError(f"model.width={self.width} must be even and divisible by model.heads={self.heads}")


class CdmppModel(nn.Module):
    """Any number of leaves and kernels; every statistic it needs is a buffer."""

    log_mean: Tensor
    log_scale: Tensor

    def __init__(self, config: CdmppConfig, leaf_width: int, kernel_width: int, device_width: int):
        super().__init__()
        self.config = config
        self.silenced = config.feature_dropout  # in training mode; ``training.candidates`` raises it for a while
        kernel_width += N_BOUNDS + N_STATES + (N_CODE if config.code else 0)
        kernel_width += 2 + N_RESOURCES if config.code and config.code_anchor else 0
        self.leaf_scaler = FeatureScaler(leaf_width, config.clip)
        self.kernel_scaler = FeatureScaler(kernel_width, config.clip)
        self.kernel_bins = QuantileBins(kernel_width, config.bins)
        self.anchor = Anchor()
        if config.code and config.code_anchor:
            self.code_anchor = CodeAnchor(config.own_costs, device_width)
        self.label_transform = LabelTransform(config.label)
        # Of log-latency, in which kernels are corrected and added up whatever the label is.
        self.register_buffer("log_mean", torch.zeros(()))
        self.register_buffer("log_scale", torch.ones(()))
        self.device_encoder = DeviceEncoder(device_width, config.width)
        self.encoder = LeafEncoder(
            leaf_width,
            kernel_width * (1 + config.bins),
            config.width,
            config.layers,
            config.heads,
            config.feedforward,
            config.dropout,
            config.positions,
            config.loops,
        )
        pooled_width = 4 * config.width if config.head == "pooled" else 3 * config.width
        self.regressor = nn.Sequential(
            nn.Linear(pooled_width + config.width, config.hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.GELU(),
        )
        self.out = nn.Linear(config.hidden, 1)
        # Start at the anchor: the first steps then correct it instead of finding the scale of time.
        with torch.no_grad():
            self.out.weight.mul_(0.1)
            self.out.bias.zero_()

    @torch.no_grad()
    def fit_statistics(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Scalers, anchor and label transform from the training programs ``rows`` (n,), and from no other."""
        self.anchor.fit(programs, rows)  # first: the kernel inputs carry its times
        if self.config.code and self.config.code_anchor:
            self.code_anchor.fit(programs, rows)
        seen = torch.from_numpy(np.asarray(rows, np.int64)).to(programs.device_index.device)
        self.device_encoder.fit(programs.device_vectors[programs.device_index[seen].unique()])
        leaves, kernels, labels = [], [], []
        for batch in ordered_batches(programs, sample_rows(rows, STATISTICS_PROGRAMS)):
            leaves.append(batch.leaves[batch.leaf_mask])
            kernels.append(self._kernel_inputs(batch)[0][batch.kernel_mask])
            labels.append(batch.log_latency)
        self.leaf_scaler.fit(torch.cat(leaves))
        self.kernel_scaler.fit(torch.cat(kernels))
        self.kernel_bins.fit(self.kernel_scaler(torch.cat(kernels)))
        log_latency = torch.cat(labels)
        self.label_transform.fit(log_latency)
        self.log_mean.copy_(log_latency.double().mean())
        self.log_scale.copy_(log_latency.double().std(correction=0).clamp_min(1e-3))

    @torch.no_grad()
    def learn_device(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """What the labelled ``rows`` (n,) tell of a device that is new, before any weight moves."""
        self.device_encoder.open_columns(programs.device_vectors)
        if self.config.code and self.config.code_anchor:
            self.code_anchor.learn_device(programs, rows)

    def forward(self, batch: Batch) -> Output:
        kernels, anchors = self._kernel_inputs(batch)
        device = self.device_encoder(batch.device_vectors)
        encoded = self.encoder(
            self._drop_columns(self.leaf_scaler(batch.leaves)),
            batch.leaf_mask,
            batch.leaf_positions,
            batch.leaf_serial_positions,
            batch.leaf_kernels,
            self._with_places(self._drop_columns(self.kernel_scaler(kernels))),
            batch.kernel_mask,
            device,
        )
        head = self._pooled if self.config.head == "pooled" else self._kernel_sum
        return head(batch, encoded, device, anchors)

    def _drop_columns(self, x: Tensor) -> Tensor:
        if not self.training or self.silenced == 0:
            return x
        kept = torch.rand(len(x), 1, x.shape[-1], device=x.device) >= self.silenced
        return x * kept  # zero is the column's mean

    def _with_places(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.kernel_bins(x)], dim=-1) if self.config.bins else x

    @torch.no_grad()
    def _kernel_inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Kernel vectors with what the analytic model and the code make of them; (B, K) natural-log seconds of that."""
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        times = self.anchor.times(parts)
        anchors = self.anchor(times, batch.kinds)
        states = kernel_states(batch.kernels, batch.device_specs, batch.kinds)
        inputs = [batch.kernels, times.log(), states]
        if self.config.code:
            codes = self._hide_codes(batch.codes)
            analytic = masked_logsumexp(anchors, batch.kernel_mask)
            columns = [code_inputs(codes, batch.device_specs, analytic)]
            if self.config.code_anchor:
                by_code, shares = self.code_anchor(codes, parts, batch)
                known = codes[:, :1] * self.code_anchor.fitted
                ahead = (by_code - analytic)[:, None] * known
                columns += [by_code[:, None] * known, ahead, shares * known]
                anchors = anchors + ahead  # the whole moves, how it is spread over the kernels stays
            inputs.append(torch.cat(columns, dim=1)[:, None].expand(-1, times.shape[1], -1))
        return torch.cat(inputs, dim=-1), anchors

    def _hide_codes(self, codes: Tensor) -> Tensor:
        if not self.training or self.config.code_dropout == 0:
            return codes
        return codes * (torch.rand(len(codes), 1, device=codes.device) >= self.config.code_dropout)

    def _pooled(self, batch: Batch, encoded: Encoded, device: Tensor, anchors: Tensor) -> Output:
        parts = [
            _masked_mean(encoded.leaves, batch.leaf_mask),
            _masked_max(encoded.leaves, batch.leaf_mask),
            _masked_mean(encoded.kernels, batch.kernel_mask),
            _masked_max(encoded.kernels, batch.kernel_mask),
            device,
        ]
        hidden = self.regressor(torch.cat(parts, dim=-1))
        label = self._scalar(hidden)
        if self.config.anchor:
            label = label + self.label_transform(masked_logsumexp(anchors, batch.kernel_mask))
        return Output(self.label_transform.inverse(label), label, hidden)

    def _scalar(self, hidden: Tensor) -> Tensor:
        """The regressor's one number, in full precision also under bf16: three digits would be seen in a latency."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.out(hidden.float())[..., 0]

    def _kernel_sum(self, batch: Batch, encoded: Encoded, device: Tensor, anchors: Tensor) -> Output:
        n_kernel = encoded.kernels.shape[1]
        belongs = batch.leaf_kernels[:, None, :] == torch.arange(n_kernel, device=anchors.device)[None, :, None]
        belongs = belongs & batch.leaf_mask[:, None, :]
        mean = belongs.to(encoded.leaves.dtype) @ encoded.leaves / belongs.sum(-1, keepdim=True).clamp_min(1)
        everything = _masked_mean(encoded.leaves, batch.leaf_mask)
        parts = [encoded.kernels, mean, *(x[:, None].expand(-1, n_kernel, -1) for x in (everything, device))]
        hidden = self.regressor(torch.cat(parts, dim=-1))
        correction = self._scalar(hidden) * self.log_scale
        per_kernel = correction + (anchors if self.config.anchor else self.log_mean)
        log_latency = masked_logsumexp(per_kernel, batch.kernel_mask)
        return Output(log_latency, self.label_transform(log_latency), _masked_mean(hidden, batch.kernel_mask))


def _masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    weight = mask[..., None].to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


def _masked_max(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask[..., None], -torch.inf).amax(1)
