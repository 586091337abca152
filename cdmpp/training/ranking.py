"""Ranking term: programs of one task in the order of their latencies, which is what a schedule search needs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def ranking_loss(log_predicted: Tensor, log_latency: Tensor, tasks: Tensor, scale: float = 0.1) -> Tensor:
    """Mean logistic loss over pairs of one task (RankNet, Burges et al. 2005), weighted by how far they lie apart.

    A pair whose latencies are equal tells nothing and weighs nothing; beyond ``exp(1)`` all weigh the same.

    Args:
        log_predicted, log_latency: (B,) natural log of seconds.
        tasks: (B,) int64; equal numbers are one task.
        scale: difference of predicted log-latency at which a pair counts as well ordered.
    """
    higher = log_latency[:, None] - log_latency[None, :]
    weight = higher.clamp(0.0, 1.0) * (tasks[:, None] == tasks[None, :])
    margin = (log_predicted[:, None] - log_predicted[None, :]) / scale
    return (weight * softplus(-margin)).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).eps)
