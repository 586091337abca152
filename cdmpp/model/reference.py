"""The published architecture (CDMPP, EuroSys'24) as its public code describes it, so that both can run side by side.

``ReferenceConfig`` has the sizes, ``conf/experiment/reference`` the training. Changed, because the original cannot be
evaluated honestly or at all otherwise:

- Leaf vectors are ours (padded with zeros to a multiple of the heads), device vectors too (no NaN, no truncation).
- Any leaf count, not five only: a count met in training by at least ``min_programs`` programs has its own flattening
  network; any other uses the nearest such count, its leaves cut or padded with zeros.
- Scalers and label transform see training data only.
- The relative term's denominator is bounded: standardised labels cross zero.
- A group of one program cannot have batch statistics: it uses the running ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.subsample import STATISTICS_PROGRAMS, sample_rows
from cdmpp.errors import ModelFormatError
from cdmpp.model.config import ReferenceConfig
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.output import Output


def config_for(config: ReferenceConfig, programs: ProgramTensors, rows: np.ndarray) -> ReferenceConfig:
    """Take ``leaf_counts`` and ``use_device`` of ``config`` from the training ``rows``."""
    counts, times = np.unique(programs.host_leaf_counts[rows], return_counts=True)
    enough = counts[times >= min(config.min_programs, times.max())]
    devices = torch.unique(programs.device_index[torch.from_numpy(np.asarray(rows, np.int64))])
    return replace(config, leaf_counts=tuple(int(count) for count in enough), use_device=len(devices) > 1)


def serial_encoding(positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    """Encode as the public code: column i already is the even index, and sine and cosine differ in frequency."""
    columns = torch.arange(width, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() / theta ** (2 * columns / width)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Linear, batch norm, ReLU for each step."""
    steps = ((nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(widths))
    return nn.Sequential(*(layer for step in steps for layer in step))


def _batch_safe(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module with batch norms; one row alone uses the running statistics."""
    training = module.training
    result = module.train(training and len(x) > 1)(x)
    module.train(training)
    return result


class ReferenceModel(nn.Module):
    """See the head of this file. ``config`` must name its ``leaf_counts`` (``config_for``)."""

    def __init__(self, config: ReferenceConfig, leaf_width: int, device_width: int) -> None:
        super().__init__()
        if not config.leaf_counts:
            raise ModelFormatError("the reference model needs leaf_counts; build it through build_for(...)")
        self.config = config
        self.model_width = width = -(-leaf_width // config.heads) * config.heads
        self.leaf_scaler = FeatureScaler(leaf_width, clip=1e4)
        self.label_transform = LabelTransform(config.label)
        layer = nn.TransformerEncoderLayer(width, config.heads, config.feedforward, config.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.flatten = nn.ModuleDict()
        for count in config.leaf_counts:
            first = nn.Linear(width * count, config.input_layer), nn.BatchNorm1d(config.input_layer)
            rest = _perceptron([config.input_layer, *config.embedded_layers, config.embedding])
            self.flatten[str(count)] = nn.Sequential(*first, rest)
        self.device_encoder = _perceptron([device_width, *config.device_layers, config.embedding])
        self.embedding_norm = nn.BatchNorm1d(config.embedding, affine=False)
        self.decoder = _perceptron([config.embedding, *config.regression_layers])
        self.out = nn.Linear(config.regression_layers[-1], 1)

    @torch.no_grad()
    def fit_statistics(self, programs: ProgramTensors, rows: np.ndarray) -> None:
        """Fit input scale and label transform to the training programs ``rows`` (n,)."""
        batches = ordered_batches(programs, sample_rows(rows, STATISTICS_PROGRAMS))
        columns = [(batch.leaves[batch.leaf_mask], batch.log_latency) for batch in batches]
        leaves, log_latency = (torch.cat(column) for column in zip(*columns, strict=True))
        self.leaf_scaler.fit(leaves, kind="minmax")
        self.label_transform.fit(log_latency)

    def forward(self, batch: Batch) -> Output:
        """Embed a program by the network of its leaf count, and add the device's embedding."""
        x = pad(self.leaf_scaler(batch.leaves), (0, self.model_width - batch.leaves.shape[-1]))
        x = x + serial_encoding(batch.leaf_serial_positions, self.model_width)
        # The original has no mask because it never pads; masking what is padded here comes to the same.
        encoded = self.encoder(x, src_key_padding_mask=~batch.leaf_mask)
        encoded = encoded.masked_fill(~batch.leaf_mask[..., None], 0.0)
        trained, counts = torch.tensor(self.config.leaf_counts, device=x.device), batch.leaf_mask.sum(1)[:, None]
        # The nearest count that was trained, the lower one on a tie.
        nearest = trained[(2 * (trained - counts).abs() + (trained > counts)).argmin(1)]
        embedded = encoded.new_zeros(len(x), self.config.embedding, dtype=torch.float32)
        for count in self.config.leaf_counts:
            members = (nearest == count).nonzero()[:, 0]
            if len(members):
                tokens = encoded[members, :count]
                tokens = pad(tokens, (0, 0, 0, count - tokens.shape[1]))
                embedded[members] = _batch_safe(self.flatten[str(count)], tokens.flatten(1)).float()
        embedded = _batch_safe(self.embedding_norm, embedded)
        if self.config.use_device:
            device = _batch_safe(self.device_encoder, batch.device_vectors)
            embedded = embedded + _batch_safe(self.embedding_norm, device)
        hidden = _batch_safe(self.decoder, embedded)
        label = self.out(hidden)[:, 0].float()
        if self.training:  # as published; an answer that is no number must stay visible
            label = torch.nan_to_num(label)
        return Output(self.label_transform.inverse(label), label, hidden)
