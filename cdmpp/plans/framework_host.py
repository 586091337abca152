"""FrameworkHost: what the Python of a training framework takes around PyTorch, while its device computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.topology import Topology
from cdmpp.platform.limits import check_fields, numbers

_SECONDS = numbers(0, 60, "s")


@dataclass(frozen=True)
class FrameworkHost:
    """Each number stands for one thing that no datasheet tells. As it is made, there is nothing but PyTorch."""

    LIMITS: ClassVar = {
        "dispatch": numbers(0.1, 100, "times"),
        "unhidden": numbers(0, 1, "of the shorter one"),
        **dict.fromkeys(("collective_s", "check_s", "message_s", "far_message_s", "step_s"), _SECONDS),
    }

    dispatch: float = 1.0
    """Seconds in which the host dispatches an op, by those in which PyTorch does: its modules and functions of autograd
    run Python between two ops."""
    unhidden: float = 0.0
    """Share of the shorter one of host and device, of each op, that the longer one does not hide."""
    collective_s: float = 0.0
    """Seconds of the host for each exchange of ranks that divide layers."""
    check_s: float = 0.0
    """Seconds of the host for each of these and each rank that takes part, where PyTorch first compares what all ranks
    are about to exchange (``TORCH_DISTRIBUTED_DEBUG=DETAIL``): the first rank hears of every other in turn, over gloo.
    """
    message_s: float = 0.0
    """Seconds by which a message between stages delays its receiver, beside its bytes: both hosts wait for it."""
    far_message_s: float = 0.0
    """The same between nodes."""
    step_s: float = 0.0
    """Seconds of a step that nothing else explains, such as its logs and the check of all gradients."""
    origin: str = "PyTorch's own dispatch"
    """Source of the numbers, for a reader."""

    def __post_init__(self) -> None:
        check_fields(self, "framework.")

    def exchange_s(self, ranks: int) -> float:
        """Return the seconds of the host for one exchange of so many ranks that divide layers."""
        return self.collective_s + self.check_s * ranks

    def topology(self, nominal: Topology) -> Topology:
        """Return the links on which messages take so much longer."""

        def later(cost: Callable[..., CollectiveEstimate], more_s: float) -> Callable[..., CollectiveEstimate]:
            def cost_at(collective: Collective, *flows: float) -> CollectiveEstimate:
                found = cost(collective, *flows)
                if collective.kind != "send_recv":
                    return found
                names = ("latency_s", "low_s", "high_s")
                return replace(found, **{name: getattr(found, name) + more_s for name in names})

            return cost_at

        if not self.message_s and not self.far_message_s:
            return nominal
        found = replace(nominal, near=later(nominal.near, self.message_s))
        return found if nominal.far is None else replace(found, far=later(nominal.far, self.far_message_s))
