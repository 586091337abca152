"""Learning-rate schedules as plain functions of the step."""

from __future__ import annotations

import math

from cdmpp.training.config import TrainerConfig


def rate_factor(config: TrainerConfig, step: int, total_steps: int) -> float:
    """What the base rate is multiplied by at ``step`` (0-based) of ``total_steps``."""
    if config.schedule == "cyclic":
        place = step % (2 * config.cycle_steps) / config.cycle_steps
        return 0.1 + 9.9 * (place if place <= 1 else 2 - place)
    warmup = max(1.0, config.warmup * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1.0, total_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
