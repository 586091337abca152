"""Sources of small networks whose operators take a time that is given."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cdmpp import devices
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.workload import Workload
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.predict.predictor import Predictor

T4 = devices.get("t4")


class ByBytes(Predictor):
    """A predictor that answers by bytes and operations, so that every size of an operator plays a part."""

    trained_on, power_states = {"t4": T4}, {}

    def __init__(self) -> None:
        self.asked: list[int] = []

    def predict(self, operators, device):
        self.asked.append(len(operators))
        seconds = np.array([1e-6 + one.io_bytes * 1e-12 + one.flops * 1e-13 for one in operators])
        return SimpleNamespace(
            latency_s=seconds, intervals={0.8: (seconds / 2, 2 * seconds)}, flags=[()] * len(seconds)
        )

    def device_share(self, operators, device):
        return np.array([0.5 if one.flops else 0.9 for one in operators])

    def device_s(self, operators, device):
        return self.predict(operators, device).latency_s * self.device_share(operators, device)


class Skips(nn.Module):
    """Sums of results, whose elements stand in rows that fill up, and a stand-in of an interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(3, 5, 3, padding=1),
            nn.Conv2d(5, 5, 3, padding=1),
            nn.Linear(5, 4),
        )

    def forward(self, x):
        x = functional.interpolate(self.first(x), scale_factor=1.5, mode="bilinear")
        x = x + torch.relu(self.second(x))
        return self.head((x + x.mean((2, 3), keepdim=True)).flatten(2).mean(2))


class Scores(nn.Module):
    """A score for each pair of examples, as of CLIP: two readings do not say how that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        return x @ x.T


def source_of(network, *example, **settings) -> PredictedSource:
    given = {"example_inputs": tuple(example)} if example else {}
    return PredictedSource(Workload(network, **given, **settings), T4, EagerRuntime(ByBytes()))
