"""A network in, its training step on several ranks out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdmpp.collectives import cluster as clusters
from cdmpp.collectives.topology import topology_of
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.runtime import step_predictor_of
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.steps.exchange_tasks import check_granularity
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.scheme import Scheme, check_scheme, scheme_of
from cdmpp.steps.step_replay import StepReplay
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.tasks import check_work
from cdmpp.steps.transforms.scale import replicate, scale_rank

_SLOWEST = 1e6
"""Times as long as the others that a rank may take."""


def replay_step(
    given: Any,
    example_inputs: Any = None,
    *,
    ranks: int,
    device: str | Device | None = None,
    cluster: str | None = None,
    link: str | None = None,
    scheme: str | Scheme = "ddp",
    backend: str | None = None,
    granularity: str = "collective",
    slow: Mapping[int, float] | None = None,
    runtime: str = "tvm",
    **options: Any,
) -> StepReplay:
    """One training step on ``ranks`` devices, each with the batch of one. Needs TVM unless a prediction is given.

    Args:
        given: what ``predict_step`` returned, or a network as it takes one.
        example_inputs: of a torch module.
        ranks: devices, from 1 up.
        device: name of the device, or one described in Python; left out where a prediction is given.
        cluster: a name of ``conf/cluster``.
        link: a name of ``conf/interconnect``, in place of a cluster: all ranks have it.
        scheme: ``ddp``, ``fsdp`` or ``ps``, or one of those with settings.
        backend: of collectives; None: gloo on CPUs, rccl on AMD's GPUs, else nccl.
        granularity: ``collective`` or ``ring step``, as of ``replay``.
        slow: rank -> how many times as long its device takes, of those that are unlike the others.
        runtime: ``tvm``, or ``torch`` for its own kernels.
        options: of ``predict_step``.

    Raises:
        CdmppError: as of ``predict_step``; no such cluster, link or scheme; ranks that do not fit.
    """
    device = device_of(given, device, options)
    on = topology_of(ranks, device, cluster, link, backend)
    how = scheme_of(scheme, on.backend) if isinstance(scheme, str) else scheme
    check_granularity(granularity, ranks)
    check_scheme(how, ranks)
    factors = check_slow(slow or {}, ranks)
    found = given if isinstance(given, StepPrediction) else step_predictor_of(runtime)(
        given, example_inputs, device=device, **options
    )  # fmt: skip
    graph = graph_of(found)
    check_work(len(graph.ranks[0].ops) * ranks, ranks)
    graph = replicate(graph, ranks)
    for rank, factor in factors.items():
        graph = scale_rank(graph, rank, factor)
    made = replay_strategy(graph, how, on, granularity)
    return replace(made, warnings=(*_warnings(found, cluster), *made.warnings))


def check_slow(slow: Mapping[int, float], ranks: int) -> Mapping[int, float]:
    """As it is; ``CdmppError`` where a rank does not exist or a factor is not positive."""
    for rank, factor in slow.items():
        if rank not in range(ranks) or not 0 < factor <= _SLOWEST:
            allowed = f"a rank from 0 to {ranks - 1} and a positive factor of at most {_SLOWEST:g}"
            raise CdmppError(f"slow rank {rank}={factor:g}: expected {allowed}")
    return slow


def device_of(given: Any, device: str | Device | None, options: Mapping[str, Any]) -> str | Device:
    """That of the prediction that was given, or the one named; ``CdmppError`` where neither or both tell it."""
    if isinstance(given, StepPrediction):
        if device is not None or options:
            raise CdmppError(f"a prediction is made already: leave out {', '.join(['device', *options])}")
        return given.prediction.device
    if device is None:
        raise CdmppError("device is not given: name the one that each rank has")
    return device


def _warnings(found: StepPrediction, cluster: str | None) -> tuple[str, ...]:
    warnings = found.prediction.warnings
    if cluster is not None and (has := clusters.get(cluster).device) != found.prediction.device:
        warnings = (*warnings, f"cluster {cluster} has {has}, and kernels are those of {found.prediction.device}")
    return warnings
