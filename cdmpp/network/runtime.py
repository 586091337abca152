"""What runs a network: TVM's compiled programs, or PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cdmpp.errors import CdmppError

if TYPE_CHECKING:
    from cdmpp.network.prediction import NetworkPrediction
    from cdmpp.network.training_prediction import StepPrediction

RUNTIMES = ("tvm", "torch")


def predictor_of(runtime: str) -> Callable[..., NetworkPrediction]:
    """What predicts networks that ``runtime`` runs; ``CdmppError`` for one that is not known."""
    if runtime == "tvm":
        from cdmpp.network.compiled.predict import predict_network

        return predict_network
    if runtime == "torch":
        from cdmpp.network.eager.predict import predict_library_network

        return predict_library_network
    raise CdmppError(f"runtime {runtime!r}: one of {', '.join(RUNTIMES)}")


def step_predictor_of(runtime: str) -> Callable[..., StepPrediction]:
    """What predicts training steps that ``runtime`` runs; ``CdmppError`` for one that is not known."""
    if runtime == "torch":
        from cdmpp.network.eager.step import predict_library_step

        return predict_library_step
    if runtime == "tvm":
        from cdmpp.network.training_prediction import predict_step

        return predict_step
    raise CdmppError(f"runtime {runtime!r}: one of {', '.join(RUNTIMES)}")
