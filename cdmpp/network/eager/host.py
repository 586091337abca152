"""Host: what PyTorch's Python and C++ take around the kernels of a network, while its device waits or runs ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdmpp.network.eager.single_price import KERNEL_S, Price
from cdmpp.network.graph import Call
from cdmpp.network.training_step import TrainingStep
from cdmpp.platform.limits import check_fields


@dataclass(frozen=True)
class UpdateCost:
    """Seconds of the host in an update, next to the dispatch of its kernels."""

    step_s: float
    """Seconds once a step."""
    parameter_s: float
    """Seconds for each parameter."""


@dataclass(frozen=True)
class Host:
    """A host takes these seconds in a training step, next to the dispatch of each kernel, which the model has learned.

    Attributes:
        title: the machine of which they are known.
        autograd_s: seconds to record a call of the forward pass, to run its node of the backward pass, and to give a
            parameter its gradient: as many for each.
        updates: name of an optimizer, with its implementation where that is not torch's own choice -> its seconds.
            Others have those of ``adamw``.
    """

    title: str
    autograd_s: float
    updates: Mapping[str, UpdateCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "host.")

    def update_cost(self, optimizer: str) -> UpdateCost:
        """Return the seconds of an optimizer's host, as ``TrainingStep.optimizer`` spells it; none of no optimizer."""
        if optimizer == "none":
            return UpdateCost(0.0, 0.0)
        named = next((name for name in sorted(self.updates, key=len, reverse=True) if optimizer.startswith(name)), "")
        return self.updates.get(named or "adamw", UpdateCost(0.0, 0.0))


DEFAULT = Host(
    "Intel Xeon of two lent machines, PyTorch 2.11",
    7.6e-6,
    {
        "sgd": UpdateCost(16e-6, 1.4e-6),
        "adam": UpdateCost(29e-6, 3.1e-6),
        "adamw": UpdateCost(28e-6, 3.1e-6),
        "adamw-fused": UpdateCost(19e-6, 1.7e-6),
    },
)
"""Host time of autograd: the median of what the steps of ViT-B/16, MobileNetV2 and DenseNet-121 with one image took
beyond the dispatch of their kernels, by calls, nodes and gradients (``benchmarks.host_steps``); of updates, with
``zero_grad``: ``benchmarks.host_costs`` on an AMD EPYC, PyTorch 2.13."""


def dispatches_s(
    calls: Sequence[Call],
    prices: Sequence[Price],
    host: Host | None = None,
    trains: bool = False,
    step: TrainingStep | None = None,
) -> list[float]:
    """Return (n calls) seconds in which the host prepares and dispatches each call.

    Args:
        calls: in the order of the program.
        prices: one a call.
        host: None: nothing but the dispatch of kernels.
        trains: whether the calls are recorded, and their nodes run backward.
        step: a step of such calls, whose parameters get gradients and are updated.
    """
    found = [
        min(price.dispatch_s, KERNEL_S) if call.is_joined else price.dispatch_s
        for call, price in zip(calls, prices, strict=True)
    ]
    if host is None or not trains:
        return found
    updated = len(calls) if step is None else sum(one.phase != "update" for one in step.calls)
    before: int | None = None
    for place, call in enumerate(calls[:updated]):
        is_recorded = call.forward is None and not call.is_joined
        if is_recorded or (call.forward is not None and call.forward != before):
            found[place] += host.autograd_s
        before = call.forward
    if step is None:
        return found
    used = [one for one in step.parameters if one.is_used]
    for one in used:
        found[one.ready] += host.autograd_s
    if updated < len(calls):
        cost = host.update_cost(step.optimizer)
        found[updated] += cost.step_s + len(used) * cost.parameter_s
    return found
