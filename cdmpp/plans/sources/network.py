"""Source of the work of a network whose ops are predicted, as a job of hours runs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cdmpp.devices import Device
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.workload import Workload
from cdmpp.plans.sources.compiled import CompiledSource, as_compiled
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.sources.sustained import SustainedSource


def network_source(
    workload: Workload, device: Device, model: str | Path | None = None, compiles: bool = False,
    power_limit_w: float | None = None,
) -> StepSource:  # fmt: skip
    """Return the source of a training step under PyTorch, at the clock that the power of the board sustains.

    Args:
        workload: the training step; batches are those that plans ask for.
        device: where each rank runs it.
        model: the folder of a model or the name of a shipped one; None: the first that knows the device.
        compiles: whether ``torch.compile`` makes each block one graph, and the loss another.
        power_limit_w: watts to which somebody limits the board, as ``nvidia-smi -pl`` does; None: its own limit.
    """
    if compiles:
        precision, float8 = as_compiled(workload.precision)
        blocks = PredictedSource(replace(workload, precision=precision), device, EagerRuntime(model))
        compiled = CompiledSource(blocks, device, float8, has_loss=True)
        return SustainedSource(compiled, device, precision, workload.attention, power_limit_w)
    source = PredictedSource(workload, device, EagerRuntime(model))
    return SustainedSource(source, device, workload.precision, workload.attention, power_limit_w)
