"""What is run: a network, a scheme, a link, buckets, ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Scenario:
    network: str
    """A key of ``networks.NETWORKS``."""
    scheme: str
    """ddp, fsdp, server or pipeline."""
    mbit: int
    """Rate of each rank's link, each way, in Mbit/s."""
    bucket_mb: float = 25.0
    """Size of a bucket of gradients, which leave together; FSDP takes its blocks."""
    ranks: int = 2
    cores: tuple[int, ...] = (0, 1)
    """Core of each rank, from the first again where there are more ranks."""
    plan: str = ""
    """A ``cdmpp.plans.Plan`` of ddp as JSON, which takes the place of ``bucket_mb``."""
    batch: int = 0
    """Examples of a micro-batch; 0: as many as the network has by itself."""
    micro_batches: int = 1
    """Micro-batches of a pipeline, or of ddp, whose gradients are accumulated."""
    replicas: int = 1
    """Replicas of a sharded model (HSDP), or of a pipeline under DDP."""
    cuts: tuple[int, ...] = ()
    """First block of each stage of a pipeline but the first one."""
    is_traced: bool = True
    """False if its steps are only timed."""

    @property
    def name(self) -> str:
        packed = "" if len(set(self.pins)) == min(self.ranks, 2) else "-packed"
        bucket = "" if self.scheme in ("fsdp", "pipeline") or self.plan else f"-{self.bucket_mb:g}MB"
        several = f"-{self.micro_batches}x{self.batch}" if self.batch else ""
        replicas = f"-{self.replicas}replicas" if self.replicas > 1 else ""
        return f"{self.network}-{self.scheme}-{self.ranks}ranks{packed}{replicas}-{self.mbit}Mbit{several}{bucket}"

    @property
    def pins(self) -> tuple[int, ...]:
        return tuple(self.cores[rank % len(self.cores)] for rank in range(self.ranks))

    def differs_in(self, other: Scenario) -> tuple[str, ...]:
        """Settings that are not equal; cores count with the ranks."""
        mine, its = asdict(self), asdict(other)
        return tuple(key for key in mine if mine[key] != its[key] and key != "cores")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(told: dict[str, Any]) -> Scenario:
    return Scenario(**{**told, "cores": tuple(told["cores"]), "cuts": tuple(told.get("cuts", ()))})


def _all() -> tuple[Scenario, ...]:
    gpt = Scenario("gpt", "ddp", 400)
    found = [replace(gpt, bucket_mb=size) for size in (0.5, 1.0, 2.0, 4.0, 25.0)]
    found += [replace(gpt, mbit=rate, bucket_mb=size) for rate in (200, 800) for size in (1.0, 25.0)]
    mlp = Scenario("mlp", "ddp", 400)
    found += [replace(mlp, mbit=rate, bucket_mb=size) for rate in (400, 800) for size in (1.0, 25.0)]
    found += [replace(mlp, mbit=1600, bucket_mb=1.0)]
    cnn = Scenario("cnn", "ddp", 100)
    found += [replace(cnn, mbit=rate, bucket_mb=size) for rate in (100, 200) for size in (0.5, 25.0)]
    found += [Scenario(network, "fsdp", rate) for network in ("gpt", "mlp") for rate in (400, 800)]
    found += [Scenario("mlp", "server", rate, 4.0, 3, (0, 0, 1)) for rate in (400, 800, 1600)]
    found += [Scenario("gpt", "server", 800, 4.0, 3, (0, 0, 1))]
    two, four = (0, 0), (0, 0, 1, 1)  # two ranks on each core, so that four find what two did
    for network, rate in (("mlp", 400), ("gpt", 400)):
        found += [Scenario(network, "ddp", rate, 4.0, ranks, pins) for ranks, pins in ((2, two), (4, four))]
    return tuple(found)


SCENARIOS = _all()
