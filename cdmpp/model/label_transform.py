"""LabelTransform: log-latency to the standardised number that a model regresses, and back."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

_LOG_MICROSECOND = math.log(1e6)


class LabelTransform(nn.Module):
    """Both directions take natural-log seconds, so that microseconds and minutes lose no digits.

    Box-Cox and Yeo-Johnson apply to microseconds: y = (x^power - 1) / power, and the same of 1 + x.
    """

    power: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, kind: str = "log") -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("power", torch.full((), float(kind != "log")))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def fit(self, log_latency: Tensor) -> None:
        """Learn power, mean and scale from the training labels (n,), natural-log seconds."""
        if self.kind != "log":
            from sklearn.preprocessing import PowerTransformer  # a second to import, which no prediction needs

            microseconds = np.exp(log_latency.double().cpu().numpy() + _LOG_MICROSECOND)
            fitted = PowerTransformer(method=self.kind, standardize=False).fit(microseconds[:, None])
            power = float(fitted.lambdas_[0])
            self.power.fill_(power if abs(power) > 1e-6 else 1e-6)  # zero, the logarithm, is a limit
        raw = self._raw(log_latency.double())
        self.mean.fill_(float(raw.mean()))
        self.scale.fill_(max(float(raw.std(correction=0)), 1e-3))

    def _raw(self, log_latency: Tensor) -> Tensor:
        if self.kind == "log":
            return log_latency
        x = log_latency + _LOG_MICROSECOND
        if self.kind == "yeo-johnson":
            x = softplus(x)  # log(1 + microseconds)
        power = self.power.to(x.dtype)
        return torch.expm1(power * x) / power

    def forward(self, log_latency: Tensor) -> Tensor:
        """Turn natural-log seconds (...,) into the standardised label."""
        return (self._raw(log_latency) - self.mean) / self.scale

    def inverse(self, label: Tensor) -> Tensor:
        """Turn the standardised label (...,) back into natural-log seconds."""
        raw = label * self.scale + self.mean
        if self.kind == "log":
            return raw
        # Beyond the pole of the power function there is no latency: stay just inside it.
        inside = (self.power * raw).clamp_min(-1 + 1e-6)
        x = torch.log1p(inside) / self.power
        if self.kind == "yeo-johnson":
            x = torch.log(torch.expm1(x.clamp_min(1e-6)))
        return x - _LOG_MICROSECOND
