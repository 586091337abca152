"""Search of all ways to train a network on several devices, for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cdmpp import devices
from cdmpp.collectives.collective import RANKS
from cdmpp.devices import Device
from cdmpp.errors import UsageError
from cdmpp.network.workload import Workload
from cdmpp.plans.combinations import asked, combinations
from cdmpp.plans.oracle import OracleResult, ask
from cdmpp.plans.question import Question
from cdmpp.plans.questions import Links, equal_question, unlike_question
from cdmpp.plans.sources.network import network_source
from cdmpp.platform.limits import SIZES, Limits, checked, numbers, shown

_PLANS = Limits(1, 1000, "plans")
POWER_W = numbers(0, 10**5, "W", above=True)
"""Power limit of a board."""


def _check_counts(counts: Mapping[str, int]) -> None:
    """Raise ``UsageError`` where devices are none, or a device has no rank."""
    if not counts:
        raise UsageError("device has no device: name one, or map names to ranks, such as {'a100': 4, 't4': 4}")
    for name, ranks in counts.items():
        RANKS.fitting(f"device[{shown(name)}]", ranks)


@checked(
    ranks=SIZES, global_batch=SIZES, memory_gb=numbers(0, 10**6, "GB", above=True), top=_PLANS,
    power_limit_w=POWER_W,
    replays=Limits(0, 1000, "plans"),
)  # fmt: skip
def search_plans(
    workload: Workload,
    device: str | Device | Mapping[str, int],
    *,
    global_batch: int,
    ranks: int | None = None,
    cluster: str | None = None,
    link: str | None = None,
    backend: str | None = None,
    strategies: Sequence[str] = (),
    memory_gb: float | None = None,
    model: str | Path | None = None,
    top: int = 10,
    replays: int = 20,
    progress: bool = False,
    compiles: bool = False,
    power_limit_w: float | None = None,
) -> OracleResult:
    """Judge every way to train a network on several devices, replay the best, and rank them.

    Args:
        workload: the training step; batches are those that plans ask for.
        device: the device of all ranks; or device -> ranks on it, for devices that differ, as nodes follow each other.
        global_batch: examples of all devices in one step.
        ranks: number of devices; left out where ``device`` says it.
        cluster: a name of ``conf/cluster``, which grows where ranks do not fit.
        link: a name of ``conf/interconnect``, in place of a cluster.
        backend: what carries collectives; None: gloo on CPUs, rccl on AMD's GPUs, else nccl.
        strategies: combinations such as ``fsdp+pipeline`` or ``fsdp*tp*pp``; empty: all that suit the network.
        memory_gb: most memory of a device, in 1e9 bytes; None: that of its datasheet.
        model: the folder of a model or the name of a shipped one; None: the first that knows the device.
        top: plans that are returned at least.
        replays: best plans by closed form that are replayed.
        progress: whether bars are shown on standard error.
        compiles: whether ``torch.compile`` makes each block one graph, and the loss another, on equal GPUs of NVIDIA.
        power_limit_w: watts to which somebody limits the boards of equal devices; None: their own limit.

    Raises:
        UsageError: an argument that cannot be.
        InfeasiblePlanError: no plan fits into memory; it says what is missing.
        CdmppError: as ``topology_of``, or the network cannot be read.
    """
    links: Links = {"cluster": cluster, "link": link, "backend": backend}
    names = tuple(dict.fromkeys(one for given in strategies for one in asked(given)))
    combinations(names)
    question: Question
    if isinstance(device, Mapping):
        if ranks is not None:
            raise UsageError(f"ranks is {ranks}, and device says how many of each: leave ranks out")
        if compiles or power_limit_w is not None:
            what = "compiles is True" if compiles else f"power_limit_w is {power_limit_w:g}"
            raise UsageError(f"{what}, and device names devices that differ: name one")
        _check_counts(device)
        sources = {name: network_source(workload, devices.get(name), model) for name in device}
        question = unlike_question(sources, device, global_batch, links, memory_gb, strategies=names, progress=progress)
    else:
        if ranks is None:
            raise UsageError("ranks is missing: say how many devices train, such as ranks=8")
        chosen = devices.get(device) if isinstance(device, str) else device
        source = network_source(workload, chosen, model, compiles, power_limit_w)
        question = equal_question(
            source, chosen, ranks, global_batch, links, memory_gb, strategies=names, progress=progress
        )
    return ask(question, top, replays, progress=progress)
