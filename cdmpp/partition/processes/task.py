"""Task: what is trained, in functions of the user's; and which of its data and results may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cdmpp.errors import UsageError
from cdmpp.partition.processes.layers import Network
from cdmpp.partition.processes.weights import OptimizerFactory
from cdmpp.platform.limits import shown
from cdmpp.synchrony.processes.training import finite_loss

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, with as many examples in their first dimensions."""


@dataclass(frozen=True)
class Task:
    """Functions of a module, so that other processes find them."""

    network: Network | Callable[[], Network]
    data: Callable[[int], Batch]
    """Number of a step, from 0 -> its batch. The first and the last stage both ask: the answer depends on it only."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Outputs and targets -> the mean loss of the examples."""
    optimizer: OptimizerFactory
    """A function that is called on each stage with the parameters of the stage."""
    held_out: Callable[[], Batch] | None = None
    """Examples on which loss and score are computed after the run."""
    score: Callable[[torch.Tensor, torch.Tensor], Any] | None = None
    """Outputs and targets -> one number, such as the accuracy."""

    def batch(self, step: int, micro_batches: int, like: Batch | None) -> Batch:
        """Return the batch of a step; ``like``: an earlier one, which it must resemble.

        Raises:
            UsageError: it is no pair of tensors, cannot be divided, or has other shapes than the one before.
        """
        call = f"data({step})"
        inputs, targets = self._pair(self.data(step), call)
        if not len(inputs) or len(inputs) % micro_batches:
            raise UsageError(
                f"{call} has {len(inputs)} examples: expected a multiple of the {micro_batches} micro-batches of a step"
            )
        if like is not None and (inputs.shape, inputs.dtype) != (like[0].shape, like[0].dtype):
            raise UsageError(
                f"the inputs of {call} are {_kind(inputs)}, those of the step before {_kind(like[0])}: expected the "
                "same of all steps"
            )
        return inputs, targets

    def held_out_batch(self) -> Batch:
        """Return the held-out examples; ``UsageError`` where they are no pair of tensors."""
        return self._pair(self.held_out(), "held_out()") if self.held_out else (torch.empty(0), torch.empty(0))

    def _pair(self, returned: Any, call: str) -> Batch:
        is_pair = isinstance(returned, tuple | list) and len(returned) == 2
        if not is_pair or not all(isinstance(one, torch.Tensor) and one.dim() for one in returned):
            raise UsageError(f"{call} returned {shown(returned)}: expected a tensor of inputs and one of targets")
        inputs, targets = returned
        if len(inputs) != len(targets):
            raise UsageError(f"{call} has {len(inputs)} inputs and {len(targets)} targets: expected as many")
        return inputs, targets

    def loss_of(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss; ``UsageError`` where it is not one finite number that has a gradient."""
        loss = self.loss(outputs, targets)
        finite_loss(loss.detach() if isinstance(loss, torch.Tensor) else loss, "loss")
        if not isinstance(loss, torch.Tensor):
            raise UsageError(f"loss returned {shown(loss)}: expected a tensor of one element")
        return loss.reshape(()) if loss.dim() else loss


def _kind(one: torch.Tensor) -> str:
    return f"{tuple(one.shape)} of {one.dtype}"
