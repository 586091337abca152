"""Training: what a user's function gives each worker, and the one vector that its parameters become."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, shown

_SAMPLES = Limits(1, 2**31, "samples")


class Training(Protocol):
    """The training of one worker: its parameters and its batches. Nothing in it knows of servers."""

    parameters: Sequence[torch.Tensor]
    """Tensors of float32 that ``batch`` changes, in the same order and shapes on every worker."""

    def batch(self) -> tuple[int, float]:
        """Train one batch (forward, backward and local update); return its samples and its loss."""


TrainFunction = Callable[[int, int, int], Training]
"""(seed, worker, workers) -> the training of that worker. A function of a module, so that other processes find it.

An object that also has ``loss() -> float`` is asked for the loss on held-out samples after the run.
"""


def checked_training(returned: Any) -> Training:
    """Return what a training function returned; ``UsageError`` where it is no training."""
    if not hasattr(returned, "parameters") or not callable(getattr(returned, "batch", None)):
        raise UsageError(
            f"the training function returned {shown(returned)}: expected an object with parameters and batch()"
        )
    found: Training = returned
    return found


def flattened(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all parameters as one vector of float32, shape (count,), whose parts they are from now on.

    Raises:
        UsageError: there are none, or one is not a tensor of float32 on the CPU.
    """
    tensors = list(parameters)
    for number, one in enumerate(tensors):
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float32 or one.device.type != "cpu":
            kind = f"{one.dtype} on {one.device}" if isinstance(one, torch.Tensor) else type(one).__name__
            raise UsageError(f"parameters[{number}] is {kind}: expected a tensor of float32 on the CPU")
    if not sum(one.numel() for one in tensors):
        raise UsageError("parameters hold no number: give the tensors that are trained, list(model.parameters())")
    flat = torch.cat([one.detach().reshape(-1) for one in tensors])
    at = 0
    for one in tensors:
        one.data = flat[at : at + one.numel()].view(one.shape)
        at += one.numel()
    return flat


def samples_and_loss(returned: Any, call: str) -> tuple[int, float]:
    """Return what a call of ``batch()`` returned as a whole number and a float; ``call`` names it in messages.

    Raises:
        UsageError: it is no pair, has less than one sample, or its loss is no finite number.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UsageError(f"{call} returned {shown(returned)}: expected (samples, loss)")
    samples, loss = returned
    try:
        samples = samples if isinstance(samples, bool) else operator.index(samples)
    except TypeError:
        pass  # the next line says what it is
    return _SAMPLES.fitting(f"the samples of {call}", samples), finite_loss(loss, call)


def finite_loss(loss: Any, call: str) -> float:
    """Return the loss that a call of the user's code returned, a number or a tensor of one element, as a float.

    Raises:
        UsageError: it is something else, or is not finite.
    """
    if isinstance(loss, torch.Tensor | np.ndarray):
        if math.prod(loss.shape) != 1:
            shape = tuple(loss.shape)
            raise UsageError(f"the loss of {call} has shape {shape}: expected one number, such as loss.mean().item()")
        loss = loss.item()
    if isinstance(loss, bool) or not isinstance(loss, numbers.Real):
        raise UsageError(f"the loss of {call} is {shown(loss)}: expected a number")
    if not math.isfinite(loss):
        raise UsageError(f"the loss of {call} is {float(loss)}: expected a finite number")
    return float(loss)
