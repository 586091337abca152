"""Evaluator: the cost of each plan of one job. What a search asks, wherever the job is known from."""

from __future__ import annotations

from typing import Protocol

from cdmpp.plans.cost import Cost
from cdmpp.plans.plan import Plan
from cdmpp.plans.search_space import SearchSpace


class Evaluator(Protocol):
    """A job whose plans have a cost."""

    @property
    def default(self) -> Plan:
        """Settings that nobody chose."""
        ...

    @property
    def space(self) -> SearchSpace:
        """What may be set."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What holds for every cost, a sentence each."""
        ...

    def evaluate(self, plan: Plan) -> Cost:
        """The cost of a plan that ``space`` allows."""
        ...

    def peak_bytes(self, plan: Plan) -> int | None:
        """The peak bytes of its cost, without a replay."""
        ...
