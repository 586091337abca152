"""Framework rules: strategies with the settings under which a framework runs them, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.errors import UsageError
from cdmpp.plans.combinations import Combination, combinations
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.sizes import MOST_BYTES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import Strategy


def names_of(framework: Framework) -> tuple[str, ...]:
    """Return the words of all combinations that a framework is asked for where nobody names some."""
    replicas = "zero1" if framework.shards_state else "data"
    return (replicas, "tp", "pp", f"{replicas}+tp", f"{replicas}+pp", "tp+pp", f"{replicas}+tp+pp")


def schedules_of() -> tuple[Schedule, ...]:
    """Return the schedules of a search: both frameworks run 1F1B."""
    return (SCHEDULES["1f1b"](),)


def by_rules(names: Sequence[str], framework: Framework) -> tuple[Combination, ...]:
    """Read combinations as ``combinations`` does, with the framework's settings.

    ``UsageError`` for a strategy that it does not have.
    """
    return tuple(_by_rules(one, framework) for one in combinations(names))


def _by_rules(one: Combination, framework: Framework) -> Combination:
    dividing = tuple(_ruled(each, framework) for each in one.model_parallel)
    return replace(one, strategy=_ruled(one.strategy, framework), model_parallel=dividing)


def _ruled(one: Strategy, framework: Framework) -> Strategy:
    """Return a strategy as the framework runs it."""
    if isinstance(one, DDP):
        size = framework.exchange_bytes
        return DDP(
            overlap=size > 0, bucket_bytes=(size or MOST_BYTES,), gradient_as_bucket_view=True,
            forward_sync_buffers=False,
        )  # fmt: skip
    if isinstance(one, ZeRO) and one.stage == 1:
        share = framework.weight / framework.gradient
        return replace(one, overlap=False, framework=framework.name, gathered_share=share)
    if isinstance(one, Pipeline):
        return replace(one, balance="products" if framework.balances_head else "blocks", return_outputs=False)
    if isinstance(one, Tensor):
        return Tensor(framework="megatron", sequence_parallel=framework.sequence_parallel)
    raise UsageError(f"--framework {framework.name} with {one.name}: its times are known for data, zero1, tp and pp")
