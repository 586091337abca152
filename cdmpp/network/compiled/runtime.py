"""CompiledRuntime: networks as TVM compiles them, each kernel a scheduled program. Needs TVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdmpp import devices
from cdmpp.data.derive import start_workers
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, ModelFormatError, UsageError
from cdmpp.network.compiled.prepared import PreparedNetwork
from cdmpp.network.compiled.replay import overhead_seconds, replay
from cdmpp.network.compiled.rule import DEFAULT, ScheduleRule
from cdmpp.network.compiled.stored_graph import CompiledNetwork, graph_for
from cdmpp.network.compiled.training_read import read_step
from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork
from cdmpp.network.source.read import NetworkSource
from cdmpp.network.training_step import TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.platform.cores import cores
from cdmpp.platform.limits import check_fields
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.flags import OF_STEPS
from cdmpp.predict.model_folder import shared


@dataclass(frozen=True)
class CompiledRuntime:
    """TVM's runtime runs one program a kernel, on the queues of the device.

    Attributes:
        model: folder of a model or name of a shipped one; None: the first that was trained on the device, for training
            steps rather one that learned from some there.
        schedule: which program of each kernel runs: ``best_of:K``, ``untuned`` or ``database:DIR``.
        fallback: whether a backward pass of which no graph can be made counts as a ratio of the forward pass.
    """

    model: str | Path | None = None
    schedule: str = DEFAULT
    fallback: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        ScheduleRule.parse(self.schedule)

    def read(self, workload: Workload, device: Device) -> CompiledNetwork:
        """Read the kernels of one run as tensor programs.

        Raises:
            UsageError: the mode ``forward_backward``, which only eager PyTorch has.
            CdmppError: the network cannot be read, or holds what has no tensor program.
        """
        if workload.mode == "forward_backward":
            raise UsageError(
                "forward and backward pass without a loss are of runtime torch: predict a training step with "
                "optimizer=None for those of compiled programs"
            )
        if workload.recompute != "none":
            raise UsageError(f"recompute {workload.recompute} is of runtime torch: TVM's programs run no block again")
        if workload.mode == "training_step":
            self._get_ready(device, True)
            return compiled_step(read_step(workload, self.fallback))
        return graph_for(workload, partial(self._get_ready, device))

    def choose(self, read: CompiledNetwork, device: Device, progress: bool = True) -> PreparedNetwork:
        """Choose the program of each kernel; ``CdmppError``: there is none, or no model for the device."""
        model = self._model_name(device, read.step is not None)
        return PreparedNetwork.of(read, device, model, ScheduleRule.parse(self.schedule), progress)

    def price(self, read: CompiledNetwork, device: Device, progress: bool = True) -> PricedNetwork:
        """Price each call by the program that was chosen for it; errors as of ``choose``."""
        return self.choose(read, device, progress).priced()

    def launch(self, priced: PricedNetwork) -> LaunchedNetwork:
        """Launch calls on the queues of the device, with its gaps between them."""
        timeline = replay(priced.read.graph, priced.call_s, priced.device.launch_overheads)
        return LaunchedNetwork(timeline, overhead_seconds(timeline))

    def _get_ready(self, device: Device, is_step: bool = False) -> None:
        """Start what samples and compiles, while this process reads the network."""
        reads_code = shared(self._model_name(device, is_step)).reads_code and device.kind == "cpu"
        start_workers(min(2, cores()), reads_code)

    def _model_name(self, device: Device, is_step: bool) -> str:
        if self.model is not None:
            return str(self.model)
        return (_model_of_steps(device.name) if is_step else None) or _model_of(device)


def compiled_step(step: TrainingStep) -> CompiledNetwork:
    """Read a training step as the calls of a compiled network."""
    return CompiledNetwork(graph=step.graph, batch=step.batch, warnings=step.warnings, step=step, source=_no_source)


def _model_of(device: Device) -> str:
    """The model trained on the device, else one that knows a device of its kind and goes only by the datasheet."""
    entries = models()
    try:
        return model_for(device, entries).name
    except ModelFormatError:
        for entry in entries:
            if entry.usable and device.kind in {
                devices.get(one).kind for one in entry.devices if one in devices.names()
            }:
                return entry.name
        raise


def _model_of_steps(device: str) -> str | None:
    for entry in models():
        learned = entry.card.get(OF_STEPS)
        if entry.usable and isinstance(learned, Mapping) and learned.get(device):  # a card may say anything
            return entry.name
    return None


def _no_source() -> NetworkSource:
    raise CdmppError("a training step is no module that could be run here: it is predicted only")
