"""What samplers see of programs: latents or inputs on one scale, and how unsure a model is of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors, ordered_batches
from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.model.feature_scaler import FeatureScaler
from cdmpp.training.sampling import Candidates

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset
    from cdmpp.predict.predictor import Predictor

FEATURE_KINDS = ("hidden", "pooled")
_PASSES = 8
_SILENCED = 0.1
"""Share of input columns that each pass goes without."""


def candidates(
    predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray, device: Device, kind: str = "hidden", seed: int = 0
) -> Candidates:
    """The programs ``rows`` (n,) as ``predictor`` sees them on ``device``; no label is read.

    Args:
        device: what they would run on, whatever device ``dataset`` has them from.
        kind: ``hidden``: last hidden vectors of the (first) model; ``pooled``: the mean over leaves and over kernels
            of the input vectors. Both standardised over the candidates, constant columns left out.

    Raises:
        DataError: unknown kind, or no program.
    """
    if kind not in FEATURE_KINDS:
        raise DataError(f"features of programs: {kind!r} is unknown; one of {', '.join(FEATURE_KINDS)}")
    if len(rows) == 0:
        raise DataError("there is no program, so no task, to choose from")
    asts = dataset.asts.take(rows)
    programs = ProgramTensors.build(asts, {device.name: device}, [device.name] * len(rows))
    if kind == "hidden":
        seen = predictor.examine(programs.to(predictor.torch_device), np.arange(len(rows)))
        raw = seen.sketch.hidden
    else:
        raw = _pooled(asts)
    tasks = np.asarray(dataset.task_ids)[rows]
    weights = {str(task): float(max(1, sum(dataset.tasks[task].networks.values()))) for task in np.unique(tasks)}
    return Candidates(_standardised(raw), tasks, uncertainty(predictor, programs, seed), weights)


@torch.inference_mode()
def uncertainty(predictor: Predictor, programs: ProgramTensors, seed: int = 0, passes: int = _PASSES) -> np.ndarray:
    """(n,) spread of predicted log-latency: between members, and between passes with input columns silenced.

    The passes drop columns at random; how much an answer then moves tells how few inputs it rests on.
    """
    logs = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for model in predictor.models:
            moved = programs.to(next(model.parameters()).device)
            scalers = [module for module in model.modules() if isinstance(module, FeatureScaler)]
            hooks = [scaler.register_forward_hook(_silence) for scaler in scalers]
            model.train()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()  # statistics of a trained model stay as they are
            try:
                for _ in range(passes):
                    values = np.empty(len(programs))
                    for batch in ordered_batches(moved, np.arange(len(programs))):
                        values[batch.rows.cpu().numpy()] = model(batch).log_latency.double().cpu().numpy()
                    logs.append(values)
            finally:
                model.eval()
                for hook in hooks:
                    hook.remove()
    return np.std(logs, axis=0)


def _silence(scaler: nn.Module, arguments: tuple[Tensor, ...], scaled: Tensor) -> Tensor:
    """Columns at zero, which is their mean, for each program others."""
    return scaled * (torch.rand(len(scaled), 1, scaled.shape[-1], device=scaled.device) >= _SILENCED)


def _pooled(asts: AstTable) -> np.ndarray:
    leaves = np.add.reduceat(asts.leaf_features, asts.leaf_offsets[:-1]) / np.diff(asts.leaf_offsets)[:, None]
    kernels = np.add.reduceat(asts.kernel_features, asts.kernel_offsets[:-1]) / np.diff(asts.kernel_offsets)[:, None]
    return np.concatenate([leaves, kernels], axis=1)


def _standardised(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    spread = x.std(0)
    varies = spread > 1e-4
    return (x[:, varies] - x[:, varies].mean(0)) / spread[varies]
