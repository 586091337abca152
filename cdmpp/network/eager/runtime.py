"""EagerRuntime: networks as PyTorch runs them by itself, one operator after the other. Needs no TVM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.devices import Device
from cdmpp.errors import ModelFormatError
from cdmpp.network.eager.device_precision import workload_on
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.host import DEFAULT, Host
from cdmpp.network.eager.launch import launched
from cdmpp.network.eager.price import priced_by
from cdmpp.network.eager.stored_read import stored_read
from cdmpp.network.runtime import LaunchedNetwork, PricedNetwork
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import check_fields
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.model_folder import shared
from cdmpp.predict.predictor import Predictor


@dataclass(frozen=True)
class EagerRuntime:
    """PyTorch runs without a compiler: a host dispatches call after call, and a device runs them in that order.

    Attributes:
        model: folder or name of a model of framework operators, or one that is loaded; None: the first that knows the
            device or its kind.
        host: of a GPU; None: nothing but the dispatch of kernels.
    """

    model: str | Path | Predictor | None = None
    host: Host | None = DEFAULT

    def __post_init__(self) -> None:
        check_fields(self)

    def read(self, workload: Workload, device: Device) -> EagerNetwork:
        """Read the operators of one run, as a device of that kind has them.

        Raises:
            CdmppError: there is no model for the device, which is said before anything is read; what was given is no
                torch model, or has an operator that nothing can answer for; the device cannot run its precision.
        """
        self.predictor(device)
        workload, warnings = workload_on(workload, device)
        found = stored_read(workload, device.architecture)
        if found is None:
            from cdmpp.network.eager.kept_reads import kept_reads

            found = kept_reads().read(workload, device.architecture)
        return replace(found, warnings=(*found.warnings, *warnings))

    def price(self, read: EagerNetwork, device: Device, progress: bool = True) -> PricedNetwork:  # noqa: ARG002
        """Price each call; no bar is shown, since nothing is sampled or compiled."""
        return priced_by(*self.predictor(device), read, device, host=self.host)

    def predictor(self, device: Device) -> tuple[Predictor, str]:
        """Return the model that answers for a device, and its name; ``ModelFormatError`` where there is none."""
        if not isinstance(self.model, str | Path | None):
            return self.model, "given"
        name = str(self.model) if self.model is not None else _model_of(device)
        return shared(name), name

    def launch(self, priced: PricedNetwork) -> LaunchedNetwork:
        """Launch the host's dispatches and the device's calls, each in the order of the program."""
        return launched(priced)


def _model_of(device: Device) -> str:
    """Name of the model for a device; the error where there is none says whether the other runtime has one."""
    entries = models()
    try:
        return model_for(device, entries, EAGER_FEATURES).name
    except ModelFormatError as error:
        try:
            other = model_for(device, entries)
        except ModelFormatError:
            raise error from None
        raise ModelFormatError(f"{error}. Programs of --runtime tvm have a model: {other.name}") from None
