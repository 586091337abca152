"""From a workload to the prediction of its run on a device, by whichever runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import UsageError
from cdmpp.network.compose import compose
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.runtime import INDUCTOR, NETWORK_RUNTIMES, ReadNetwork, Runtime
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.training_step import TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import checked
from cdmpp.predict.predictor import Predictor


@checked()
def runtime_of(
    runtime: str,
    model: str | Path | Predictor | None = None,
    schedule: str | None = None,
    fallback: bool | None = None,
    cuda_graphs: bool = False,
) -> Runtime[Any]:
    """Return the runtime that is called ``runtime``, with its settings; None: its default. Only its code is imported.

    Raises:
        UsageError: no such runtime, or one that does not have this setting.
    """
    if cuda_graphs and runtime != INDUCTOR:
        raise UsageError(f"cuda_graphs is of runtime {INDUCTOR}: runtime {runtime} launches kernel by kernel")
    if runtime == "tvm":
        from cdmpp.network.compiled.rule import DEFAULT
        from cdmpp.network.compiled.runtime import CompiledRuntime

        return CompiledRuntime(model, schedule or DEFAULT, fallback is not False)  # type: ignore[arg-type]  # it refuses
    if runtime not in NETWORK_RUNTIMES:
        raise UsageError(f"runtime {runtime!r}: one of {', '.join(NETWORK_RUNTIMES)}")
    if schedule is not None:
        raise UsageError(f"schedule {schedule} is of runtime tvm: PyTorch's libraries choose their kernels themselves")
    if fallback is not None:
        raise UsageError("fallback is of runtime tvm: backward passes of PyTorch's own kernels are never a ratio")
    if runtime == INDUCTOR:
        from cdmpp.network.inductor.runtime import InductorRuntime

        return InductorRuntime(model, cuda_graphs)
    from cdmpp.network.eager.runtime import EagerRuntime

    return EagerRuntime(model)


@checked()
def predict_network(
    workload: Workload, device: str | Device, runtime: Runtime[Any], measure: bool = False, progress: bool = True
) -> NetworkPrediction:
    """Predict the time of one run of a network on a device, before anyone runs it there.

    Args:
        workload: the network and how it runs, of mode ``inference`` or ``forward_backward``.
        device: name of a device, or one described in Python.
        runtime: what runs the network.
        measure: whether the network is also built and run on this machine, which must be the device.
        progress: whether bars are shown on stderr while schedules are sampled and compiled.

    Raises:
        UsageError: no such device, or a mode or a measurement that the runtime does not have.
        CdmppError: the network cannot be read or holds what the runtime does not have, or there is no model.
    """
    if workload.mode == "training_step":
        raise UsageError("mode training_step: predict_step answers for it, phase by phase")
    if measure and not _is_compiled(runtime):
        raise UsageError("measure is of runtime tvm: PyTorch's own kernels are not timed here yet")
    described = devices.get(device) if isinstance(device, str) else device
    read = runtime.read(workload, described)
    prediction = predict_read(read, described, runtime, progress)
    if not measure:
        return prediction
    from cdmpp.network.compiled.checked import with_measured

    return with_measured(prediction, read, described)


@checked()
def predict_step(
    workload: Workload | TrainingStep, device: str | Device, runtime: Runtime[Any], progress: bool = True
) -> StepPrediction:
    """Predict the time of a training step on one device, phase by phase.

    Args:
        workload: the network and how it is trained, whatever its mode; or a step of compiled programs that was read
            before.
        device: as of ``predict_network``, and so ``runtime`` and ``progress``.
        runtime: as there.
        progress: as there.

    Raises:
        CdmppError: as of ``predict_network``; the network cannot be trained.
    """
    described = devices.get(device) if isinstance(device, str) else device
    if isinstance(workload, TrainingStep):
        if not _is_compiled(runtime):
            raise UsageError("a training step that was made before has programs of runtime tvm")
        from cdmpp.network.compiled.runtime import compiled_step

        read: ReadNetwork = compiled_step(workload)
    else:
        read = runtime.read(replace(workload, mode="training_step"), described)
    assert read.step is not None
    return StepPrediction(read.step, predict_read(read, described, runtime, progress))


def predict_read(read: ReadNetwork, device: Device, runtime: Runtime[Any], progress: bool = True) -> NetworkPrediction:
    """Predict calls that ``runtime`` has read."""
    priced = runtime.price(read, device, progress)
    return compose(priced, runtime.launch(priced))


def _is_compiled(runtime: Runtime[Any]) -> bool:
    from cdmpp.network.compiled.runtime import CompiledRuntime

    return isinstance(runtime, CompiledRuntime)
