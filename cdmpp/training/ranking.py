"""fit_ranker(...): a ranker learns, from tasks with several measured programs, which of them are fast."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cdmpp.data.dataset import LatencyDataset
from cdmpp.devices import sheets_of
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import SHARPNESS, Ranker

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
        inputs = ranker.scaled(columns)
        for number, member in enumerate(ranker.members):
            _fit_member(member, inputs, goal, groups, seed + number)
    return ranker.eval().requires_grad_(False)


def _groups(names: np.ndarray, tasks: np.ndarray) -> list[np.ndarray]:
    """Places of the programs of each task on each device, where there are several."""
    _, which = np.unique(np.stack([names, tasks]), axis=1, return_inverse=True)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    return [part for part in parts if len(part) > 1]


def _fit_member(member: torch.nn.Module, inputs: Tensor, goal: Tensor, groups: list[np.ndarray], seed: int) -> None:
    order, steps = np.random.default_rng(seed), len(groups) // _TASKS
    optimiser = torch.optim.AdamW(member.parameters(), _RATE, weight_decay=_DECAY, fused=True)
    course = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_EPOCHS * steps)
    member.train()
    for _ in range(_EPOCHS):
        shuffled = order.permutation(len(groups))[: steps * _TASKS]
        for chosen in shuffled.reshape(steps, _TASKS):
            parts = [torch.from_numpy(groups[i]) for i in chosen]
            places = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1)
            absent = places < 0
            scores = torch.full(places.shape, -torch.inf).masked_scatter(~absent, member(inputs[places[~absent]])[:, 0])
            scores = scores.log_softmax(1).masked_fill(absent, 0.0)
            wanted = goal[places.clamp_min(0)].masked_fill(absent, -torch.inf).softmax(1)
            loss = -(wanted * scores).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            course.step()
