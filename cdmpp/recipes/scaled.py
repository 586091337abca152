"""A model scaled to a device: factors of groups of resources, told by few of its programs."""

from __future__ import annotations

import copy

import numpy as np

from cdmpp.data.batching import ProgramTensors
from cdmpp.data.dataset import LatencyDataset
from cdmpp.devices import Device
from cdmpp.model.eager import EagerModel
from cdmpp.model.regressor import CdmppModel
from cdmpp.predict.predictor import Predictor


def scale_to(
    start: Predictor, device: Device, dataset: LatencyDataset, rows: np.ndarray
) -> tuple[Predictor, dict[str, float]]:
    """Return a copy of ``start`` that knows ``device``, scaled by its programs ``rows`` (n,), and mean factors.

    Each group of resources gets one factor (``CodePrior.scale_device``, ``EagerPrior.scale_device``), of CPUs each cost
    in it another, and a call its time. Every task tells as much; no trained weight moves. ``start`` can be scaled, see
    ``Predictor.can_scale``.
    """
    scaled = copy.deepcopy(start)
    programs = tensors_of(dataset, rows, device).to(str(start.torch_device))
    _, which, sizes = np.unique(dataset.task_ids[rows], return_inverse=True, return_counts=True)
    factors = []
    for model in scaled.models:
        assert isinstance(model, CdmppModel | EagerModel)  # no other has costs of devices
        factors.append(model.scale_device(programs, np.arange(len(rows)), 1 / sizes[which]))
    scaled.trained_on[device.name] = device
    return scaled, {name: float(np.exp(np.mean([np.log(one[name]) for one in factors]))) for name in factors[0]}


def tensors_of(dataset: LatencyDataset, rows: np.ndarray, device: Device) -> ProgramTensors:
    """Return the programs ``rows`` as they run on ``device``, with their labels."""
    names = [device.name] * len(rows)
    return ProgramTensors.build(dataset.asts.take(rows), {device.name: device}, names, dataset.latency_s[rows])
