"""A network in, the plan of its training step on several ranks out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdmpp.collectives.topology import topology_of
from cdmpp.devices import Device
from cdmpp.network.runtime import step_predictor_of
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.search import SearchResult, search
from cdmpp.plans.work_judge import WorkJudge
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.predicted_replay import device_of
from cdmpp.steps.transforms.scale import replicate


def optimise_step(
    given: Any,
    example_inputs: Any = None,
    *,
    ranks: int,
    device: str | Device | None = None,
    cluster: str | None = None,
    link: str | None = None,
    scheme: str = "ddp",
    backend: str | None = None,
    memory_limit_bytes: int | None = None,
    most_micro_steps: int = 1,
    runtime: str = "tvm",
    **options: Any,
) -> SearchResult:
    """The best plan for a training step on ``ranks`` equal devices. Needs TVM unless a prediction is given.

    Args:
        given: what ``predict_step`` returned, or a network as it takes one.
        example_inputs: of a torch module.
        ranks: as of ``replay_step``, and so ``device``, ``cluster``, ``link`` and ``backend``.
        device: as there.
        cluster: as there.
        link: as there.
        scheme: ``ddp``, ``fsdp`` or ``ps``; it is kept.
        backend: as there.
        memory_limit_bytes: of each device; None: no limit.
        most_micro_steps: batches whose gradients may be added up; more than 1 multiplies the global batch.
        runtime: ``tvm``, or ``torch`` for its own kernels.
        options: of ``predict_step``.

    Raises:
        CdmppError: as of ``replay_step`` and ``search``.
    """
    device = device_of(given, device, options)
    plan = Plan(scheme)
    on = topology_of(ranks, device, cluster, link, backend)
    found = given if isinstance(given, StepPrediction) else step_predictor_of(runtime)(
        given, example_inputs, device=device, **options
    )  # fmt: skip
    graph = graph_of(found)
    judge = WorkJudge(replicate(graph, ranks), on, plan, Memory(found.step.memory, graph.ranks[0]))
    made = search(judge, memory_limit_bytes, most_micro_steps, found.step.optimizer)
    return replace(made, flags=(*found.prediction.warnings, *made.flags))
