"""EagerNetwork: a workload as the operators that PyTorch runs eagerly, whoever read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdmpp.network.runtime import ReadNetwork
from cdmpp.operators.operator import EagerOperator

if TYPE_CHECKING:
    from cdmpp.network.eager.divided import CallExchange
    from cdmpp.network.eager.graph import StandIns


@dataclass(frozen=True, kw_only=True)
class EagerNetwork(ReadNetwork):
    """This network is made of framework operators."""

    operators: Mapping[str, EagerOperator]
    """Task id -> operator."""
    stand_ins: StandIns
    trains: bool = False
    """True if a backward pass is among the calls."""
    elements: Mapping[int, float] = field(default_factory=dict)
    """Place of a call that ``EagerOperator.flat`` made -> its elements; of a training step."""
    exchanges: tuple[CallExchange, ...] = ()
    """Exchanges of ranks that divide its operators; of a training step."""

    def stand_in_for(self, place: int) -> str:
        """Return the operator that nobody measured and that a call, or the one whose gradient it makes, stands for."""
        forward = self.graph.calls[place].forward
        return self.stand_ins.get(place if forward is None else forward, "")
