"""InductorRuntime: networks as ``torch.compile`` runs them in its default mode. Needs no TVM, no Triton and no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cdmpp.devices import Device
from cdmpp.errors import UnsupportedNetworkError
from cdmpp.network.eager.device_precision import workload_on
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.inductor.absent_gpu import check_gpu
from cdmpp.network.inductor.read import InductorNetwork, read_inductor
from cdmpp.network.inductor.step import read_inductor_step
from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import check_fields
from cdmpp.predict.predictor import Predictor


@dataclass(frozen=True)
class InductorRuntime:
    """Inductor fuses what is pointwise, a reduction or a norm into kernels of its own; libraries run the products.

    Attributes:
        model: as of ``EagerRuntime``.
        cuda_graphs: whether the kernels are replayed as a CUDA graph, so that the host dispatches none of them
            (``mode="reduce-overhead"``).
    """

    model: str | Path | Predictor | None = None
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def read(self, workload: Workload, device: Device) -> InductorNetwork:
        """Read the kernels; errors as of ``read_inductor``, and where Inductor would record no CUDA graph.

        Raises:
            UnsupportedNetworkError: a device that Triton writes no kernels for, or other ones than are read here.
        """
        check_gpu(device)
        self.libraries.predictor(device)
        workload, warnings = workload_on(workload, device)
        reader = read_inductor_step if workload.mode == "training_step" else read_inductor
        read = reader(workload, device)
        if self.cuda_graphs and read.no_cuda_graph:
            raise UnsupportedNetworkError(
                f"{read.graph.name}: Inductor records no CUDA graph of it: {read.no_cuda_graph}. Leave them out"
            )
        return replace(read, warnings=(*read.warnings, *warnings))

    def price(self, read: InductorNetwork, device: Device, progress: bool = True) -> PricedNetwork:
        """Price each call as of ``EagerRuntime``; fused kernels stand for operators that nobody measured."""
        priced = self.libraries.price(read, device, progress)
        launched = "replayed as a CUDA graph" if self.cuda_graphs else "launched one by one"
        dispatch_s = list(priced.dispatch_s)
        if self.cuda_graphs:  # the update is not compiled
            compiled = sum(len(kernel.operators) or 1 for kernel in read.kernels)
            dispatch_s[:compiled] = [0.0] * compiled
        return replace(priced, schedule=f"of Inductor and of PyTorch's libraries, {launched}", dispatch_s=dispatch_s)

    def launch(self, priced: PricedNetwork) -> LaunchedNetwork:
        """Launch the kernels in the order of Inductor's scheduler."""
        return self.libraries.launch(priced)

    @property
    def libraries(self) -> EagerRuntime:
        """The runtime whose operators the libraries serve; the graph is one node to autograd."""
        return EagerRuntime(self.model, host=None)
