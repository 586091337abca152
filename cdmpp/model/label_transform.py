"""LabelTransform: log-latency to the standardised number that a model regresses, and back."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from cdmpp.errors import CdmppError

LABEL_TRANSFORMS = ("log", "box-cox", "yeo-johnson", "quantile")
_LOG_MICROSECOND = math.log(1e6)
_N_KNOTS = 64


class LabelTransform(nn.Module):
    """Both directions work on natural-log seconds, so that microseconds and minutes lose no digits.

    Box-Cox and Yeo-Johnson apply to microseconds: y = (x^power - 1) / power, and the same of 1 + x. ``quantile`` makes
    the training labels normal: linear between their quantiles, and beyond the outermost as steep as between those two.
    The statistics are buffers: they travel with the weights.
    """

    power: Tensor
    knots: Tensor
    """(_N_KNOTS,) natural-log seconds at the quantiles of ``scores``; only of ``quantile``."""
    scores: Tensor
    """(_N_KNOTS,) standard normal deviates."""
    mean: Tensor
    scale: Tensor

    def __init__(self, kind: str = "log"):
        super().__init__()
        if kind not in LABEL_TRANSFORMS:
            raise CdmppError(f"unknown label transform {kind!r}; one of {', '.join(LABEL_TRANSFORMS)}")
        self.kind = kind
        self.register_buffer("power", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        if kind == "quantile":
            levels = (torch.arange(_N_KNOTS, dtype=torch.float64) + 0.5) / _N_KNOTS
            self.register_buffer("scores", torch.special.ndtri(levels).float())
            self.register_buffer("knots", self.scores.clone())

    @torch.no_grad()
    def fit(self, log_latency: Tensor) -> None:
        """Learn power or knots, mean and scale from the training labels (n,), natural-log seconds."""
        if self.kind == "quantile":
            quantiles = torch.quantile(log_latency.double(), torch.special.ndtr(self.scores.double()))
            # Equal labels would make a step without a slope.
            apart = 1e-4 * torch.arange(_N_KNOTS, dtype=quantiles.dtype, device=quantiles.device)
            self.knots.copy_(torch.cummax(quantiles, 0).values + apart)
        elif self.kind != "log":
            from sklearn.preprocessing import PowerTransformer  # a second to import, which no prediction needs

            microseconds = np.exp(log_latency.double().cpu().numpy() + _LOG_MICROSECOND)
            fitted = PowerTransformer(method=self.kind, standardize=False).fit(microseconds[:, None])
            self.power.fill_(float(fitted.lambdas_[0]))
        raw = self._raw(log_latency.double())
        self.mean.fill_(float(raw.mean()))
        self.scale.fill_(max(float(raw.std(correction=0)), 1e-3))

    def _raw(self, log_latency: Tensor) -> Tensor:
        if self.kind == "log":
            return log_latency
        if self.kind == "quantile":
            return _interpolate(log_latency, self.knots, self.scores)
        x = log_latency + _LOG_MICROSECOND
        if self.kind == "yeo-johnson":
            x = softplus(x)  # log(1 + microseconds)
        power = self.power.to(x.dtype)
        return torch.where(power.abs() < 1e-6, x, torch.expm1(power * x) / _nonzero(power))

    def forward(self, log_latency: Tensor) -> Tensor:
        return (self._raw(log_latency) - self.mean) / self.scale

    def inverse(self, label: Tensor) -> Tensor:
        """Standardised label (...,) back to natural-log seconds."""
        raw = label * self.scale + self.mean
        if self.kind == "log":
            return raw
        if self.kind == "quantile":
            return _interpolate(raw, self.scores, self.knots)
        # Beyond the pole of the power function there is no latency: stay just inside it.
        inside = (self.power * raw).clamp_min(-1 + 1e-6)
        x = torch.where(self.power.abs() < 1e-6, raw, torch.log1p(inside) / _nonzero(self.power))
        if self.kind == "yeo-johnson":
            x = torch.log(torch.expm1(x.clamp_min(1e-6)))
        return x - _LOG_MICROSECOND


def _interpolate(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """``values`` (k,) given at the rising points ``at`` (k,), read at ``x`` (...): linear, also beyond both ends."""
    right = torch.searchsorted(at.to(x.dtype), x.detach().contiguous()).clamp(1, len(at) - 1)
    left_at, left = at[right - 1].to(x.dtype), values[right - 1].to(x.dtype)
    slope = (values[right].to(x.dtype) - left) / (at[right].to(x.dtype) - left_at)
    return left + slope * (x - left_at)


def _nonzero(power: Tensor) -> Tensor:
    return torch.where(power.abs() < 1e-6, torch.ones_like(power), power)
