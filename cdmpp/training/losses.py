"""Losses: hybrid relative and absolute error, and distances between two sets of latents (CMD, MMD, CORAL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.regressor import Output
from cdmpp.training.config import LossConfig


def hybrid_loss(
    config: LossConfig,
    output: Output,
    log_latency: Tensor,
    weights: Tensor,
    label: LabelTransform,
    total_weight: Tensor | None = None,
) -> Tensor:
    """Weighted mean over programs of the terms that ``config`` gives weight to.

    Args:
        output: predictions, fields (B,).
        log_latency: (B,) natural log of measured seconds.
        weights: (B,) weight of each program.
        label: turns log-latency into the standardised labels that two of the terms use.
        total_weight: () what the weighted sum is divided by; None: the sum of ``weights``.
    """
    difference = output.log_latency - log_latency
    loss = torch.zeros_like(difference)
    if config.log_weight:
        loss = loss + config.log_weight * _log_error(config, difference)
    if config.relative_weight:
        loss = loss + config.relative_weight * relative_error(difference, config.relative_limit)
    if config.label_mse_weight or config.label_relative_weight:
        target = label(log_latency)
        gap = output.label - target
        loss = loss + config.label_mse_weight * gap.square()
        loss = loss + config.label_relative_weight * gap.abs() / target.abs().clamp_min(config.label_floor)
    return (weights * loss).sum() / (weights.sum() if total_weight is None else total_weight)


def _log_error(config: LossConfig, difference: Tensor) -> Tensor:
    if config.log == "l1":
        return difference.abs()
    if config.log == "mse":
        return difference.square()
    # Divided by delta, so that its far slope is 1 whatever the delta.
    zero = torch.zeros_like(difference)
    return huber_loss(difference, zero, reduction="none", delta=config.huber_delta) / config.huber_delta


def relative_error(log_difference: Tensor, limit: float = 1.0) -> Tensor:
    """|exp(d) - 1|: the relative error of a latency whose log is off by d; linear in d beyond ``limit``."""
    inside = log_difference.clamp_max(limit)
    return (torch.exp(inside) * (1 + log_difference - inside) - 1).abs()


def domain_distance(config: LossConfig, x: Tensor, y: Tensor) -> Tensor:
    """Distance of two sets of latents (n, H) and (m, H), the one that ``config.domain`` names."""
    # CMD is defined on a bounded interval; tanh gives one of length 2 without moving what is near zero.
    x, y = x.float().tanh(), y.float().tanh()
    if config.domain == "mmd":
        return maximum_mean_discrepancy(x, y)
    if config.domain == "coral":
        return correlation_alignment(x, y)
    return central_moment_discrepancy(x, y, config.cmd_moments, span=2.0)


def maximum_mean_discrepancy(x: Tensor, y: Tensor, scales: Sequence[float] = (0.25, 1.0, 4.0)) -> Tensor:
    """Squared MMD of two samples (n, H) and (m, H), summed over Gaussian kernels exp(-d^2 / (scale * mean d^2)).

    The biased estimate, which is never negative. The widths follow the mean squared distance of all pairs: with fixed
    ones a kernel sees either nothing or no difference as latents grow.
    """
    both = torch.cat([x, y])
    lengths = both.square().sum(1)
    squared = (lengths[:, None] + lengths[None] - 2 * both @ both.T).clamp_min(0)
    width = squared.detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-squared / (scale * width)) for scale in scales]).sum(0)
    n = len(x)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def correlation_alignment(x: Tensor, y: Tensor) -> Tensor:
    """CORAL (Sun and Saenko, 2016) of (n, H) and (m, H): squared difference of the covariances, over 4 H^2."""
    return (_covariance(x) - _covariance(y)).square().sum() / (4 * x.shape[1] ** 2)


def _covariance(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return centred.T @ centred / max(1, len(x) - 1)


def central_moment_discrepancy(x: Tensor, y: Tensor, moments: int = 5, span: float = 1.0) -> Tensor:
    """CMD of two samples (n, H) and (m, H) of values within an interval of length ``span``.

    ||mean x - mean y|| / span + sum over k = 2..moments of ||c_k(x) - c_k(y)|| / span^k, with c_k the k-th central
    moment of each column.
    """
    mean_x, mean_y = x.mean(0), y.mean(0)
    total = _norm(mean_x - mean_y) / span
    centred_x, centred_y = x - mean_x, y - mean_y
    for k in range(2, moments + 1):
        total = total + _norm((centred_x**k).mean(0) - (centred_y**k).mean(0)) / span**k
    return total


def _norm(x: Tensor) -> Tensor:
    # The gradient of a plain norm at zero is NaN, and equal samples do occur.
    return (x.square().sum() + 1e-24).sqrt()
