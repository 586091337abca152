"""Plan: everything about a distributed training step that may be set without changing the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import Any, ClassVar

from cdmpp.collectives.collective import RANKS
from cdmpp.collectives.topology import check_ranks
from cdmpp.errors import CdmppError, some
from cdmpp.plans.degrees import TITLES, ParallelDegrees
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.strategies import DEFAULT_STRATEGY, STRATEGIES
from cdmpp.platform.limits import Limits, check_choice, check_once, fitting
from cdmpp.steps.registry import to_dict
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.policies.synchronous import Synchronous

ACCUMULATION = Limits(1, 1024, "batches")
"""A replay holds the operations of each."""
UPDATES = ("separate", "fused")
"""One kernel or several for each parameter, as the job has them; one kernel for all."""
PARAMETERS, ACTIVATIONS = OFFLOADS = ("parameters", "activations")
"""These may lie in the memory of the host."""


@dataclass(frozen=True)
class Plan:
    """A plan holds the settings of one job. As it is made, it is the framework's default on one rank.

    ``CdmppError`` for a value that cannot be, and for degrees that the strategy does not support.
    """

    LIMITS: ClassVar[dict[str, Limits]] = {"gradient_accumulation_steps": ACCUMULATION}

    strategy: Strategy = field(default_factory=lambda: STRATEGIES[DEFAULT_STRATEGY]())
    """The way replicas keep their parameters alike, with the settings of that strategy and of no other."""
    degrees: ParallelDegrees = ParallelDegrees()
    """The ranks of the job."""
    gradient_accumulation_steps: int = 1
    """Batches whose gradients are added up before ranks exchange them. More than one multiply the global batch."""
    recompute: tuple[str, ...] = ()
    """Names of modules whose forward pass runs again in the backward pass, so that nothing inside them is kept."""
    update: str = "separate"
    """One of ``UPDATES``."""
    synchrony: Synchrony = Synchronous()
    """The rule that decides which exchanges an update waits for."""
    model_parallel: tuple[Strategy, ...] = ()
    """Strategies that divide the model, such as a pipeline: one for each of their degrees."""
    devices: tuple[str, ...] = ()
    """Name of the device of each rank, by its number; empty: all ranks have the device of the job."""
    shares: tuple[int, ...] = ()
    """Micro-batches, or gradient accumulation steps, of each replica, by its number; empty: each has as many. Their
    mean is that number, and micro-batches are equally large. Frameworks give each as many; others need loops of their
    own, and losses that are divided by the mean."""
    offload: tuple[str, ...] = ()
    """These lie in the memory of the host, some of ``OFFLOADS``: ``parameters``, with their gradients and the states of
    the optimizer, which the host then updates; ``activations``, what the backward pass reads of all blocks but the
    last."""

    def __post_init__(self) -> None:
        for name, kind in (("strategy", Strategy), ("degrees", ParallelDegrees), ("synchrony", Synchrony)):
            if not isinstance(getattr(self, name), kind):
                raise CdmppError(f"plan.{name} is {getattr(self, name)!r}: expected a {kind.__name__}")
        ACCUMULATION.fitting("plan.gradient_accumulation_steps", self.gradient_accumulation_steps)
        object.__setattr__(self, "recompute", fitting("plan.recompute", self.recompute, tuple[str, ...]))
        check_once("plan.recompute", self.recompute)
        check_choice("plan.update", self.update, UPDATES)
        self._check_strategies()
        owners = [degree for one in self.strategies for degree in one.degrees]
        if twice := [degree for place, degree in enumerate(owners) if degree in owners[:place]]:
            raise CdmppError(f"plan.model_parallel has two strategies for degrees.{twice[0]}: give one")
        for degree in self.degrees.beyond_one():
            if degree not in owners:
                given, counted = (" and ".join(names) for names in ([one.name for one in self.strategies], owners))
                raise CdmppError(
                    f"degrees.{degree} is {getattr(self.degrees, degree)}: {TITLES[degree]} is not supported with "
                    f"{given}, whose ranks are counted by {counted}"
                )
        if self.gradient_accumulation_steps > 1 and not self.strategy.can_accumulate:
            raise CdmppError(f"plan.gradient_accumulation_steps above 1 is not supported with {self.strategy.name}")
        replicas = self.strategy if self.degrees.size(*self.replicating) > 1 else None
        for one in self.model_parallel:
            one.check_with(replicas, bool(self.recompute), self.model_parallel)
        for one in self.strategies:
            one.check(self.degrees.size(*(one.degrees if one.divides_model else self.replicating)))
        self._check_sharded()
        self._check_devices()
        self._check_shares()
        self._check_offload()

    def _check_sharded(self) -> None:
        """Refuse what contradicts parameters or states that replicas divide."""
        strategy = self.strategy
        shards = strategy.shards({name: getattr(self.degrees, name) for name in self.replicating})
        if shards > 1 and self.synchrony != Synchronous():
            raise CdmppError(
                f"plan.synchrony is {self.synchrony.name}, and under {strategy.name} each of {shards} ranks updates a "
                "part that all others wait for: give bsp, or a strategy whose ranks have whole replicas, ddp or ps"
            )
        if self.degrees.pp > 1 and (ahead := getattr(strategy, "prefetch", 1)) > 1:
            raise CdmppError(
                f"{strategy.name}.prefetch is {ahead}, and in a pipeline all modules are gathered once and stay: leave "
                "it out"
            )

    def _check_offload(self) -> None:
        offload = fitting("plan.offload", self.offload, tuple[str, ...])
        check_once("plan.offload", offload)
        for one in offload:
            check_choice("plan.offload", one, OFFLOADS)
        object.__setattr__(self, "offload", tuple(one for one in OFFLOADS if one in offload))
        if not offload:
            return
        if self.devices or self.shares:
            raise CdmppError("plan.offload with devices or shares: hosts of unlike nodes are not described")
        if others := [name for name in ("pp", "ep") if getattr(self.degrees, name) > 1]:
            raise CdmppError(f"plan.offload is not supported with degrees.{others[0]}: leave out one of the two")
        if ACTIVATIONS in offload and self.recompute:
            raise CdmppError(
                "plan.offload names activations, and plan.recompute makes them again: leave out one of the two"
            )
        if PARAMETERS in offload:
            self._check_parameters_out()

    def _check_parameters_out(self) -> None:
        strategy = self.strategy
        if not strategy.can_offload:
            raise CdmppError(
                f"plan.offload names parameters, and {strategy.name} keeps them on the device: take fsdp or hsdp, "
                "whose CPUOffloadPolicy has them on the host"
            )
        if strategy.shards({name: getattr(self.degrees, name) for name in self.replicating}) == 1:
            raise CdmppError(
                "plan.offload names parameters, and one rank has all of them: give degrees.dp_shard above 1"
            )
        if self.gradient_accumulation_steps > 1 and getattr(strategy, "scatter_each_batch", False):
            raise CdmppError(
                "plan.offload names parameters, and each accumulated batch scatters gradients, which the host would "
                "add up while the device stands still: leave scatter_each_batch out"
            )

    def _check_devices(self) -> None:
        object.__setattr__(self, "devices", fitting("plan.devices", self.devices, tuple[str, ...]))
        if not self.devices:
            return
        if len(self.devices) != self.ranks:
            raise CdmppError(f"plan.devices names {len(self.devices)} devices for {self.ranks} ranks: give one a rank")
        dividing = [name for name in self.degrees.beyond_one() if name not in (*self.replicating, "pp")]
        for group in Mesh(self.degrees).groups(*dividing) if dividing else ():
            if len(own := {self.devices[rank]: rank for rank in group}) > 1:
                raise CdmppError(
                    f"plan.devices: ranks {' and '.join(map(str, own.values()))} divide the same operators on "
                    f"{' and '.join(own)}: such ranks need equal devices"
                )

    def _check_shares(self) -> None:
        shares = fitting("plan.shares", self.shares, tuple[int, ...])
        object.__setattr__(self, "shares", shares if len(set(shares)) > 1 else ())
        if not shares:
            return
        replicas, counts = self.degrees.size("dp_replicate", "dp_shard"), [self.gradient_accumulation_steps]
        counts += [one.micro_batches for one in self.model_parallel if hasattr(one, "micro_batches")]
        for share in shares:
            ACCUMULATION.fitting("plan.shares", share)
        if len(shares) != replicas:
            raise CdmppError(f"plan.shares has {len(shares)} numbers for {replicas} replicas: give one a replica")
        if min(counts) > 1 and len(counts) > 1:
            raise CdmppError("plan.shares with gradient accumulation and a pipeline: leave out one of the two")
        if sum(shares) != replicas * max(counts):
            raise CdmppError(
                f"plan.shares are {sum(shares)} micro-batches in all, and {replicas} replicas have "
                f"{max(counts)} each on average: expected {replicas * max(counts)}"
            )
        for one in (each for each in self.model_parallel if hasattr(each, "micro_batches")):
            for share in set(self.shares):
                replace(one, micro_batches=share).check(self.degrees.size(*one.degrees))  # type: ignore[call-arg]
        if self.shares and self.strategy.exchanges_each_batch:
            raise CdmppError(
                f"plan.shares differ, and under {self.strategy.name} replicas exchange in each pass, so that all need "
                "as many: take ddp or zero1, or equal shares"
            )

    def _check_strategies(self) -> None:
        if not isinstance(self.model_parallel, tuple):
            raise CdmppError(f"plan.model_parallel is {self.model_parallel!r}: expected a list of strategies")
        for one in self.model_parallel:
            if not isinstance(one, Strategy) or not one.divides_model:
                raise CdmppError(f"plan.model_parallel names {getattr(one, 'name', one)!r}, which divides no model")
        if self.strategy.divides_model:
            name = self.strategy.name
            raise CdmppError(f"plan.strategy is {name}, which divides the model: it belongs into plan.model_parallel")

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """All its strategies, that of the replicas first."""
        return (self.strategy, *self.model_parallel)

    @property
    def replicating(self) -> tuple[str, ...]:
        """Degrees along which ranks share parameters: their gradients are averaged."""
        return tuple(degree for one in self.strategies if one.replicates for degree in one.degrees)

    @property
    def ranks(self) -> int:
        """The job has so many ranks."""
        return self.degrees.ranks

    def changes(self, default: Plan) -> tuple[str, ...]:
        """Name the settings that differ from those of ``default``, a phrase each."""
        told = {
            "gradient_accumulation_steps": f"{self.gradient_accumulation_steps} gradient accumulation steps",
            "recompute": f"recomputed: {some(self.recompute, ', ', 4) or 'nothing'}",
            "update": f"{self.update} update",
            "synchrony": self.synchrony.title,
            "degrees": f"{self.ranks} ranks",
            "model_parallel": " and ".join(one.title for one in self.model_parallel) or "no model parallelism",
            "devices": f"devices {', '.join(runs(self.devices))}",
            "shares": f"shares {', '.join(map(str, self.shares)) or 'of equal size'}",
            "offload": f"{' and '.join(self.offload) or 'nothing'} on the host",
        }
        differ = [one.name for one in fields(self) if getattr(self, one.name) != getattr(default, one.name)]
        own = self.strategy.changes(default.strategy) if "strategy" in differ else ()
        return (*own, *(told[name] for name in differ if name != "strategy"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON and YAML take them; ``plan_from_dict`` gives the plan again."""
        found: dict[str, Any] = {
            "strategy": to_dict(self.strategy),
            "degrees": asdict(self.degrees),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "recompute": list(self.recompute),
            "update": self.update,
            "synchrony": to_dict(self.synchrony),
            "model_parallel": [to_dict(one) for one in self.model_parallel],
        }
        found |= {"devices": runs(self.devices)} if self.devices else {}
        found |= {"shares": list(self.shares)} if self.shares else {}
        return found | ({"offload": list(self.offload)} if self.offload else {})


def runs(devices: Sequence[str]) -> list[str]:
    """Write the device of each rank as ``NAME:COUNT`` for each run of equal ones, in the order of ranks."""
    counted = ((name, len([*own])) for name, own in groupby(devices))
    return [f"{name}:{many}" for name, many in counted]


def from_runs(where: str, given: Sequence[str]) -> tuple[str, ...]:
    """Read what ``runs`` wrote; a name without a number stands for one. ``CdmppError`` names ``where``."""
    found = list[str]()
    for one in given:
        name, _, count = one.strip().partition(":")
        if not name or not (count or "1").isdecimal() or int(count or 1) not in RANKS:
            raise CdmppError(f"{where} has {one!r}: expected the name of a device, or NAME:COUNT such as t4:8")
        found += [name] * int(count or 1)
    return tuple(found)


def plan_on(ranks: int, strategy: str | Strategy = DEFAULT_STRATEGY, **settings: Any) -> Plan:
    """Make the default plan of a strategy on so many ranks; ``settings`` are other fields of ``Plan``."""
    check_ranks(ranks)
    strategy = STRATEGIES[strategy]() if isinstance(strategy, str) else strategy
    if len(strategy.degrees) > 1 and ranks > 1:
        both = " and ".join(f"degrees.{name}" for name in strategy.degrees)
        raise CdmppError(f"{strategy.name} on {ranks} ranks: give a plan with {both}, whose product they are")
    degrees = ParallelDegrees(**{strategy.degrees[0]: ranks})
    if strategy.divides_model:
        return Plan(degrees=degrees, model_parallel=(strategy,), **settings)
    return Plan(strategy, degrees, **settings)
