"""InductorNetwork: a workload as the kernels that ``torch.compile`` launches, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.devices import Device
from cdmpp.errors import UnsupportedNetworkError
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.graph import check_runs
from cdmpp.network.inductor.calls import CompiledCalls
from cdmpp.network.inductor.kernel import Kernel
from cdmpp.network.inductor.lowered import lower
from cdmpp.network.precision import Precision
from cdmpp.network.source.in_type import in_type
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.source.trained_model import batch_of, modes_kept
from cdmpp.network.workload import Workload
from cdmpp.programs.autocast import under_autocast


@dataclass(frozen=True, kw_only=True)
class InductorNetwork(EagerNetwork):
    """This network is made of fused kernels and calls of libraries."""

    kernels: tuple[Kernel, ...]
    """All kernels that are launched, of the forward and then of the backward pass; the update has none of Inductor."""
    no_cuda_graph: str = ""
    """The reason for which Inductor would record no CUDA graph; empty where it would."""


def read_inductor(workload: Workload, device: Device) -> InductorNetwork:
    """Read the kernels of one run of mode ``inference`` or ``forward_backward``, as Inductor fuses them for a GPU.

    Raises:
        UnsupportedNetworkError: a graph break, or sizes that depend on values.
        CdmppError: as of ``cdmpp.network.eager.read.read_run``.
    """
    with modes_kept(workload.network):
        network = read_torch(workload, needs_values=False)
        model, example, precision = network.model, network.example, network.precision
        check_asked(workload, precision)
        if precision.weights != "float32":
            model, example = in_type(model, example, precision.weights)
        trains = workload.mode == "forward_backward"
        model = model.train(trains)
        if precision.autocast:
            model = under_autocast(model, "gpu", precision.autocast)
        made = CompiledCalls(network.name, device.architecture, workload.attention, trains, precision.tf32)
        told = lower(network.name, model, example, trains, device, made.add)
        graph = made.graph()
        check_runs(graph)
        return InductorNetwork(
            graph=graph,
            batch=batch_of(network.example),
            precision=precision.name,
            warnings=(*network.warnings, *told, *warnings_of(trains)),
            operators=made.grown.operators,
            stand_ins=made.stand_ins,
            trains=trains,
            alive_bytes=made.live_bytes,
            tokens=None if network.cached is None else network.example[0].numel(),
            kernels=tuple(made.kernels),
            no_cuda_graph=made.no_cuda_graph,
        )


def check_asked(workload: Workload, precision: Precision) -> None:
    """Raise ``UnsupportedNetworkError`` for what is not answered under ``torch.compile``, though it is without it."""
    asked = {"moe_imbalance": workload.moe_imbalance > 1, "boxes": workload.boxes is not None}
    if named := [f"{name} {getattr(workload, name):g}" for name, is_asked in asked.items() if is_asked]:
        raise UnsupportedNetworkError(
            f"{named[0]} with runtime torch-compile: where values decide Dynamo breaks graphs, or makes sizes unknown. "
            "Runtime torch answers"
        )
    if precision.float8:
        raise UnsupportedNetworkError(
            f"precision {precision} with runtime torch-compile: torchao's casts to float8 are not traced. Runtime "
            "torch answers, with casts that are calls of their own"
        )


def warnings_of(trains: bool) -> tuple[str, ...]:
    """Say what is assumed of every network that Inductor compiles, a sentence each."""
    found = [
        "torch.compile: fused kernels are Inductor's own, read without a GPU; their times are of operators that move "
        "as much, as nobody measured fused kernels",
        "torch.compile: padding of products, which Inductor decides by measuring, is left out, and the host is taken "
        "to dispatch a kernel as eager PyTorch does an operator",
        "memory: no buffer is used again in its place",
    ]
    return (*found, "torch.compile: what is recomputed and saved is what AOTAutograd's partitioner says")[: 3 + trains]
