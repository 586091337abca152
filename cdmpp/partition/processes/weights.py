"""Weights: the versions of a stage's parameters that its schedule keeps, and what updates them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""What is to be trained -> what trains it, such as ``functools.partial(torch.optim.SGD, lr=0.1)``."""


class Weights:
    """Version v is what v updates have made of the parameters. It lies in the copy v modulo ``versions``.

    A graph that autograd made with a copy runs its backward pass with what lies there then: the same version where the
    schedule keeps as many as are under way, and the newest one where it keeps one only.
    """

    def __init__(
        self, stage: nn.Sequential, versions: int, optimizer: OptimizerFactory, warm_up: int, clip_norm: float | None
    ) -> None:
        """Take the initial parameters from ``stage``, which becomes the first copy; copies share everything else."""
        self.versions, self.updates = versions, 0
        shared: dict[int, Any] = {id(one): one for one in stage.buffers()}
        shared |= {id(one): one for one in stage.parameters() if not one.requires_grad}
        self.copies = [stage, *(copy.deepcopy(stage, dict(shared)) for _ in range(versions - 1))]
        self._parameters = [[one for one in own.parameters() if one.requires_grad] for own in self.copies]
        # They have the memory of the newest version, and count by themselves how often it was changed in place: a graph
        # made before an update may run its backward pass after it.
        self.newest = [nn.Parameter(one.data) for one in self._parameters[0]]
        self.optimizer = _made(optimizer, self.newest) if self.newest else None
        self._warm_up, self._clip_norm = warm_up, clip_norm
        self._rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer and warm_up else []

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of one version of all parameters."""
        return sum(one.nbytes for one in self.copies[0].parameters())

    def copy_of(self, version: int) -> nn.Sequential:
        """Return the module in which a version lies, or has lain."""
        return self.copies[version % self.versions]

    def update(self, used: int) -> None:
        """Make the next version, with the gradients that lie in the copy of the version ``used``."""
        after = (self.updates + 1) % self.versions
        used_parameters = self._parameters[used % self.versions]
        for newest, place, had in zip(self.newest, self._parameters[after], used_parameters, strict=True):
            if newest.data_ptr() != place.data_ptr():
                place.data.copy_(newest.data)
                newest.data = place.data
            newest.grad, had.grad = had.grad, None
        if self.optimizer:
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self.newest, self._clip_norm)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=False):
                group["lr"] = rate * min(1.0, (self.updates + 1) / (self._warm_up + 1))
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.updates += 1

    def level(self) -> None:
        """Make all versions equal to the newest."""
        for own in self._parameters:
            for newest, place in zip(self.newest, own, strict=True):
                place.data.copy_(newest.data)

    def state(self) -> dict[str, torch.Tensor]:
        """Return all parameters and buffers of the newest version by their names in the network, which may change."""
        return self.copy_of(self.updates).state_dict()

    def restore(self, state: dict[str, torch.Tensor], updates: int) -> None:
        """Make ``state`` the newest version, after so many updates."""
        self.updates = updates
        for newest, place in zip(self.newest, self._parameters[updates % self.versions], strict=True):
            newest.data = place.data
        self.put(state)

    def put(self, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the newest version with ``state``."""
        own = self.state()
        for name, one in state.items():
            own[name].data.copy_(one)


def _made(optimizer: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    made: Any = optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise UsageError(f"optimizer returned {shown(made)}: expected a torch.optim.Optimizer of the parameters given")
    return made
