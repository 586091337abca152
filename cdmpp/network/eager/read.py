"""A workload is read as the operators that PyTorch runs eagerly, one call after the other. Needs no TVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdmpp.network.eager.backward import ForwardBackward, with_backward
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.graph import EagerGraph, eager_graph_of
from cdmpp.network.graph import check_runs
from cdmpp.network.liveness import peak_with_inputs
from cdmpp.network.source.in_type import in_type
from cdmpp.network.source.torch_network import TorchNetwork, read_torch
from cdmpp.network.source.trained_model import batch_of, modes_kept
from cdmpp.network.training_phases import live_bytes
from cdmpp.network.workload import Workload
from cdmpp.platform.torch_state import usual_torch
from cdmpp.programs.autocast import under_autocast
from cdmpp.programs.compiled import EAGER, compiled_flag, compiled_modules, compiled_noted
from cdmpp.programs.exported import export
from cdmpp.programs.regions import flags_of


@dataclass(frozen=True, eq=False)
class ExportedRun:
    """This is one run of mode ``inference`` or ``forward_backward`` as a graph of PyTorch's operators."""

    network: TorchNetwork
    place: str
    """What runs it: ``cpu``, ``gpu``, or the architecture of a GPU."""
    trains: bool
    exported: Any
    """``torch.export.ExportedProgram`` of the model, or what stands for it."""
    batch: int
    compiled: tuple[str, ...]
    """Parts of the network that ``torch.compile`` was to compile."""
    tokens: int | None = None
    """As of ``EagerNetwork``."""
    attention: str = "auto"
    """The kernel that attention runs by, one of ``attention_rules.ASKED``."""

    @usual_torch()
    def read(self) -> EagerNetwork:
        """Read the calls; ``CdmppError`` as of ``read_run``."""
        forward = eager_graph_of(
            self.exported, self.network.name, self.place, self.trains, self.attention, self.network.precision
        )
        check_runs(forward.graph)
        whole: EagerGraph | ForwardBackward = forward
        alive = None
        if self.trains:
            whole = with_backward(forward)
            phases = ["forward" if place < whole.forward else "backward" for place in range(len(whole.graph.calls))]
            alive = live_bytes(whole.graph, phases, whole.graph.results, whole.recomputed)
        elif self.network.cached is not None:
            alive = peak_with_inputs(whole.graph, forward.weights) - whole.graph.input_bytes
        return EagerNetwork(
            graph=whole.graph,
            batch=self.batch,
            precision=self.network.precision.name,
            warnings=(
                *self.network.warnings,
                *compiled_flag(self.compiled, EAGER),
                *flags_of(self.exported),
                *forward.warnings,
            ),
            operators=whole.operators,
            stand_ins=forward.stand_ins,
            trains=self.trains,
            alive_bytes=alive,
            tokens=self.tokens,
            cache_bytes=_cache_bytes(self.network, self.exported),
        )


def read_run(workload: Workload, place: str = "gpu") -> EagerNetwork:
    """Read the calls of one run of mode ``inference`` or ``forward_backward``.

    Args:
        workload: which network, and how it runs.
        place: what runs it: ``cpu``, ``gpu``, or the architecture of a GPU, such as ``sm_80``. It decides what is one
            kernel.

    Raises:
        CdmppError: what was given is no torch model, or has an operator that nothing can answer for.
    """
    return export_run(workload, place).read()


def export_run(workload: Workload, place: str = "gpu", exporter: Callable[..., Any] = export) -> ExportedRun:
    """Export one run; arguments and errors as of ``read_run``. ``exporter`` takes the arguments of ``export``."""
    with modes_kept(workload.network):
        network = read_torch(workload, needs_values=False)
        model, example = network.model, network.example
        precision = network.precision
        trains, kind = workload.mode == "forward_backward", "cpu" if place == "cpu" else "gpu"
        if precision.weights != "float32":
            model, example = in_type(model, example, precision.weights)
        model = model.train(trains)
        if precision.autocast:
            model = under_autocast(model, kind, precision.autocast)
        assumed: dict[str, Any] = {"imbalance": workload.moe_imbalance, "boxes": workload.boxes}
        with compiled_noted() as compiled:
            exported = exporter(model, example, eager=True, trains=trains, kind=kind, **assumed)
        noted = tuple(compiled | compiled_modules(network.model))
        tokens = None if network.cached is None else network.example[0].numel()
        batch = batch_of(network.example)
        return ExportedRun(network, place, trains, exported, batch, noted, tokens, workload.attention)


def _cache_bytes(network: TorchNetwork, exported: Any) -> int:
    """Bytes of the results of a language model behind its logits: keys and values."""
    if network.cached is None:
        return 0
    output = next(node for node in exported.graph.nodes if node.op == "output")
    return sum(one.meta["val"].nbytes for one in output.args[0][1:] if hasattr(one, "meta"))
