"""Programs as samplers see them: latents on one scale, and how unsure a model is of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.dataset import LatencyDataset
from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.model.packing import Packing
from cdmpp.predict.predictor import Predictor
from cdmpp.training.metrics import call_sites
from cdmpp.training.sampling import Candidates

_PASSES = 8
_SILENCED = 0.1  # share of input columns that each pass goes without


def candidates(
    predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray, device: Device, seed: int = 0, unsure: bool = True
) -> Candidates:
    """Describe the programs ``rows`` (n,) as ``predictor`` sees them on ``device``: its first model's hidden vectors.

    ``device`` is what they would run on, whatever device ``dataset`` has them from. No label is read. Without
    ``unsure`` the uncertainty, many passes, is not asked for.
    """
    if len(rows) == 0:
        raise DataError("there is no program, so no task, to choose from")
    programs = ProgramTensors.build(dataset.asts.take(rows), {device.name: device}, [device.name] * len(rows))
    programs = programs.to(predictor.torch_device)
    tasks = dataset.task_ids[rows]
    spread = uncertainty(predictor, programs, seed) if unsure else None
    return Candidates(latents(predictor, programs), tasks, spread, call_sites(dataset, tasks))


def latents(predictor: Predictor, programs: ProgramTensors) -> np.ndarray:
    """Return (n, d) last hidden vectors of the first model, standardised by column, constant columns left out."""
    hidden = predictor.examine(programs, np.arange(len(programs))).sketch.hidden.astype(np.float64)
    hidden = hidden[:, hidden.std(0) > 1e-4]
    return (hidden - hidden.mean(0)) / hidden.std(0)


@torch.inference_mode()
def uncertainty(predictor: Predictor, programs: ProgramTensors, seed: int) -> np.ndarray:
    """Return the (n,) spread of predicted log-latency: of members, and of passes with silenced input columns."""
    logs = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for model in predictor.models:
            model.train()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()  # statistics of a trained model stay as they are
            try:
                for _ in range(_PASSES):
                    logs.append(np.empty(len(programs)))
                    for batch in ordered_batches(programs, np.arange(len(programs))):
                        with _silenced(model, batch):
                            logs[-1][batch.rows.cpu().numpy()] = model(batch).log_latency.double().cpu().numpy()
            finally:
                model.eval()
    return np.std(logs, axis=0)


@contextmanager
def _silenced(model: nn.Module, batch: Batch) -> Iterator[None]:
    """Set some of the scaled columns to zero, which is their mean, for each program of ``batch`` others."""
    packing = Packing.of(batch)
    programs = {"leaf_scaler": packing.program_of_leaf, "kernel_scaler": packing.program_of_kernel}

    def silence(name: str, scaled: Tensor) -> Tensor:
        kept = torch.rand(len(batch.rows), scaled.shape[-1], device=scaled.device) >= _SILENCED
        # Rows that are not padded to (B, L, width) come as (l, width).
        return scaled * (kept[:, None] if scaled.ndim == 3 else kept[programs[name]])

    hooks = [
        module.register_forward_hook(lambda _, __, scaled, name=name: silence(name, scaled))
        for name, module in model.named_modules()
        if isinstance(module, FeatureScaler)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
