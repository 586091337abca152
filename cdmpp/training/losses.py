"""Losses: hybrid relative and absolute error, and the distance between two sets of latents (CMD)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from cdmpp.model.label_transform import LabelTransform
from cdmpp.model.output import Output
from cdmpp.training.config import LossConfig
from cdmpp.training.shared_batch import mean_of


def hybrid_loss(
    config: LossConfig,
    output: Output,
    log_latency: Tensor,
    weights: Tensor,
    label: LabelTransform,
    total_weight: Tensor | None = None,
) -> Tensor:
    """Average by ``weights`` (B,) the terms of ``config`` with weight; ``log_latency`` (B,) natural-log seconds.

    The sum is divided by ``total_weight``, or by that of ``weights``.
    """
    difference = output.log_latency - log_latency
    loss = torch.zeros_like(difference)
    if config.log_weight and config.log == "mse":
        loss = loss + config.log_weight * difference.square()
    elif config.log_weight:
        # Divided by delta, so that its far slope is 1 whatever the delta.
        huber = huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=config.huber_delta)
        loss = loss + config.log_weight * (huber / config.huber_delta)
    if config.relative_weight:
        loss = loss + config.relative_weight * relative_error(difference, config.relative_limit)
    if config.label_mse_weight or config.label_relative_weight:
        target = label(log_latency)
        gap = output.label - target
        loss = loss + config.label_mse_weight * gap.square()
        loss = loss + config.label_relative_weight * gap.abs() / target.abs().clamp_min(config.label_floor)
    return (weights * loss).sum() / (weights.sum() if total_weight is None else total_weight)


def relative_error(log_difference: Tensor, limit: float = 1.0) -> Tensor:
    """Compute |exp(d) - 1|: the relative error of a latency whose log is off by d; linear in d beyond ``limit``."""
    inside = log_difference.clamp_max(limit)
    return (torch.exp(inside) * (1 + log_difference - inside) - 1).abs()


def domain_distance(config: LossConfig, x: Tensor, y: Tensor, mean: Callable[[Tensor], Tensor] = mean_of) -> Tensor:
    """Compute the CMD between two sets of latents (n, H) and (m, H); ``mean`` as ``central_moment_discrepancy``."""
    # CMD is defined on a bounded interval; tanh gives one of length 2 without moving what is near zero.
    return central_moment_discrepancy(x.float().tanh(), y.float().tanh(), config.cmd_moments, 2.0, mean)


def central_moment_discrepancy(
    x: Tensor, y: Tensor, moments: int = 5, span: float = 1.0, mean: Callable[[Tensor], Tensor] = mean_of
) -> Tensor:
    """Compute the CMD of samples (n, H) and (m, H) of values within an interval of length ``span``.

    ||mean x - mean y|| / span + sum over k = 2..moments of ||c_k(x) - c_k(y)|| / span^k, with c_k the k-th central
    moment of each column. ``mean``: over the rows of a sample, also of those that other processes have of it.
    """
    mean_x, mean_y = mean(x), mean(y)
    total = _norm(mean_x - mean_y) / span
    centred_x, centred_y = x - mean_x, y - mean_y
    for k in range(2, moments + 1):
        total = total + _norm(mean(centred_x**k) - mean(centred_y**k)) / span**k
    return total


def _norm(x: Tensor) -> Tensor:
    # The gradient of a plain norm at zero is NaN, and equal samples do occur.
    return (x.square().sum() + 1e-24).sqrt()
