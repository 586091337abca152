"""fit_ranker(...): a ranker learns, from tasks with several measured programs, which of them are fast."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cdmpp.data.dataset import LatencyDataset
from cdmpp.devices import sheets_of
from cdmpp.model.compiled_ranker import RankerGradient
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import DROPOUT, SHARPNESS, Ranker

_EPOCHS, _TASKS, _RATE, _DECAY = 40, 64, 2e-3, 0.02
_FEWEST = 2 * _TASKS


def fit_ranker(dataset: LatencyDataset, rows: np.ndarray, seed: int) -> Ranker | None:
    """Fit a ranker to the programs ``rows``; None where fewer than 128 tasks have several on one device.

    Listwise (ListNet's top-one loss; Cao et al., ICML 2007): the scores of a task's programs on one device, through a
    softmax, should be as large as the programs are fast.
    """
    rows = np.asarray(rows)
    names, log_s = np.asarray(dataset.devices)[rows].astype(str), np.log(dataset.latency_s[rows])
    groups = _groups(names, np.asarray(dataset.task_ids)[rows].astype(str))
    if len(groups) < _FEWEST:
        return None
    sheets = sheets_of(names)
    columns = torch.from_numpy(with_devices(dataset.asts.take(rows), [sheets[name] for name in names]))
    behind = np.concatenate([log_s[group] - log_s[group].min() for group in groups])
    places = np.concatenate(groups)
    goal = torch.empty(len(rows))
    goal[torch.from_numpy(places)] = torch.from_numpy(-behind / SHARPNESS).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ranker = Ranker()
        ranker.fit_statistics(columns)
        _fit_members(ranker, ranker.scaled(columns), goal, groups, seed)
    return ranker.eval().requires_grad_(False)


def _groups(names: np.ndarray, tasks: np.ndarray) -> list[np.ndarray]:
    """Places of the programs of each task on each device, where there are several."""
    _, which = np.unique(np.stack([names, tasks]), axis=1, return_inverse=True)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    return [part for part in parts if len(part) > 1]


@torch.no_grad()
def _fit_members(ranker: Ranker, inputs: Tensor, goal: Tensor, groups: list[np.ndarray], seed: int) -> None:
    varies = ranker.scale > 0
    members = [[weight.detach().clone() for weight in member.parameters()] for member in ranker.members]
    for own in members:
        own[0] = own[0][:, varies].contiguous()
        for weight in own:
            weight.grad = torch.empty_like(weight)
    weights = [weight for own in members for weight in own]
    gradient = RankerGradient(members, inputs[:, varies].contiguous(), goal, DROPOUT)
    orders = [np.random.default_rng(seed + number) for number in range(len(members))]
    dropped, steps, threads = np.random.default_rng((seed, 1)), len(groups) // _TASKS, torch.get_num_threads()
    optimiser = torch.optim.AdamW(weights, _RATE, weight_decay=_DECAY, fused=True)
    course = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_EPOCHS * steps)
    for _ in range(_EPOCHS):
        shuffled = [order.permutation(len(groups))[: steps * _TASKS].reshape(steps, _TASKS) for order in orders]
        for step in range(steps):
            tasks = [[groups[i] for i in own[step]] for own in shuffled]
            gradient.put(tasks, dropped.integers(2**63, size=len(members)).tolist(), threads)
            optimiser.step()
            course.step()
    for member, own in zip(ranker.members, members, strict=True):
        for weight, learned in zip(member.parameters(), own, strict=True):
            if weight.shape == learned.shape:
                weight.copy_(learned)
            else:
                weight.zero_()[:, varies] = learned
