"""One job of Megatron-Bridge as a plan of the product: seconds of a step by what they are spent on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache

import numpy as np

from benchmarks.plans.megatron_bridge_data import CLUSTERS, MODELS, Plan
from benchmarks.plans.one_plan import one_plan
from cdmpp import Workload, devices
from cdmpp.collectives import cluster as clusters
from cdmpp.collectives.topology import Topology, on_cluster
from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import Candidates
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.sources.sustained import SustainedSource
from cdmpp.plans.stage_costs import GRADIENTS, PARAMETERS, SENDS, SPLIT
from cdmpp.plans.strategies.context import Context
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.platform.paths import cache_root
from cdmpp.steps.strategy import Strategy

PRODUCTS, EXPERTS, ATTENTION, OTHER = "products", "products of experts", "attention", "other kernels"
KERNELS = (PRODUCTS, EXPERTS, ATTENTION, OTHER)
BUBBLE, UPDATE, TOKENS, INSIDE, REPLICAS = "bubble", "update", "all-to-all", "tensor, context, messages", "gradients"
PARTS = (*KERNELS, BUBBLE, UPDATE, TOKENS, INSIDE, REPLICAS)
"""They sum up to the step."""
_KINDS = {"dense": PRODUCTS, "matmul": ATTENTION}
_VERSION = 2


def parts(plan: Plan) -> dict[str, float]:
    """Return the seconds of a step by ``PARTS``, with ``low`` and ``high``, factors to the ends of its interval.

    ``CdmppError``: the product cannot answer for the plan.
    """
    text = json.dumps([_VERSION, asdict(plan), dict(MODELS[plan.model].config)], sort_keys=True)
    path = cache_root() / "megatron-bridge" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_parts(plan)))
    found: dict[str, float] = json.loads(path.read_text())
    return found


def _parts(plan: Plan) -> dict[str, float]:
    source, topology = source_of(plan), topology_of(plan.system, plan.gpus)
    degrees, operators = degrees_of(plan), operators_of(plan)
    costs = Judge(source, is_gpu=True).closed_form(candidates_of(plan), topology)
    if costs.errors:
        raise CdmppError(next(iter(costs.errors.values())))
    one = {name: float(getattr(costs, f"{name}_s")[0]) for name in ("compute", "bubble", "update", "exposed", "once")}
    hidden = {name: float(values[0]) for name, values in costs.communication_s.items()}
    work = source.work(plan.micro_batch, replace(degrees, pp=1, dp_shard=1), operators)
    busy, found = _busy(work), dict.fromkeys(PARTS, 0.0)
    for name in KERNELS:
        found[name] = one["compute"] * busy[name] / sum(busy.values())
    found[BUBBLE], found[UPDATE] = one["bubble"] + one["once"], one["update"]
    inside = min(hidden[SPLIT] + hidden[SENDS], one["exposed"])
    share = _share_of_tokens(work, degrees, topology) * hidden[SPLIT] / max(hidden[SPLIT] + hidden[SENDS], 1e-12)
    found[TOKENS], found[INSIDE] = inside * share, inside * (1 - share)
    found[REPLICAS] = one["exposed"] - inside
    step_s = sum(found.values())
    ends = {"low": float(costs.low_s[0]) / step_s, "high": float(costs.high_s[0]) / step_s}
    return {
        **found,
        **ends,
        "whole replicas": hidden[GRADIENTS] + hidden[PARAMETERS],
        "bytes": float(costs.memory_bytes[0]),
    }


def _busy(work: RankWork) -> dict[str, float]:
    """Seconds of both passes of one micro-batch by ``KERNELS``."""
    found = dict.fromkeys(KERNELS, 0.0)
    for op in work.rank.ops:
        if op.phase != "update":
            of = work.rank.ops[op.forward].name if op.forward is not None else op.name
            is_of_experts = op.kind == "matmul" and "grouped_mm" in of
            found[EXPERTS if is_of_experts else _KINDS.get(op.kind, OTHER)] += op.duration_s
    return found


def _share_of_tokens(work: RankWork, degrees: ParallelDegrees, topology: Topology) -> float:
    """Share of the exchanges of divided operators that is all-to-all between experts."""
    spent = dict[bool, float]()
    members = {one.degree: Mesh(degrees).group_of(0, (one.degree,)) for one in work.exchanges}
    for one in work.exchanges:
        seconds = float(topology.latency_s(one.kind, np.array([float(one.bytes)]), members[one.degree])[0])
        is_of_tokens = one.kind == "all_to_all"
        spent[is_of_tokens] = spent.get(is_of_tokens, 0.0) + seconds
    return spent.get(True, 0.0) / max(sum(spent.values()), 1e-12)


def degrees_of(plan: Plan) -> ParallelDegrees:
    """Return the ranks along each degree; those of experts are part of Megatron's replicas, and tensor ranks count."""
    ep = max(plan.ep // plan.tp, 1)
    return ParallelDegrees(dp_shard=plan.data // ep, tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=ep)


def is_far(plan: Plan) -> bool:
    """Return True if tokens go to experts of other nodes."""
    members = Mesh(degrees_of(plan)).group_of(0, ("ep", "tp") if plan.ep > 1 else ())
    return topology_of(plan.system, plan.gpus).shape(members).nodes > 1


def operators_of(plan: Plan) -> tuple[Strategy, ...]:
    """Return the strategies that divide operators, by Megatron's rules."""
    found = list[Strategy]()
    if plan.tp > 1:
        experts = "apart" if plan.ep > 1 else "whole"  # expert tensor parallelism of 1, as all recipes have it
        found.append(Tensor(framework="megatron", sequence_parallel=True, async_tp=True, experts=experts))
    if plan.cp > 1:
        found.append(Context(method="ring"))
    if plan.ep > 1:
        found.append(Expert())
    return tuple(found)


def candidates_of(plan: Plan) -> Candidates:
    """Return the one plan as columns.

    Megatron's distributed optimizer gathers parameters once a step and scatters gradients once, as FSDP does in a
    pipeline; its FSDP does both for each micro-batch.
    """
    pipeline = Pipeline(
        "interleaved1f1b" if plan.vp > 1 else "1f1b", plan.micro_batches,
        stages_per_rank=plan.vp if plan.vp > 1 else None, overlap=plan.vp == 1,
    )  # fmt: skip
    strategy = FSDP(is_pipelined=not plan.fsdp)
    return one_plan(strategy, operators_of(plan), pipeline, degrees_of(plan), plan.global_batch, plan.micro_batch)


@cache
def topology_of(system: str, gpus: int) -> Topology:
    """Return the links of a job's GPUs."""
    _, name, each = CLUSTERS[system]
    described = replace(clusters.get(name), devices_per_node=each, adapters_per_node=each)
    return on_cluster(described.grown(gpus), gpus)


_KNOWN = dict[tuple[str, int, str], PredictedSource]()
"""Model, tokens and precision -> a source on some device, whose exports others use."""


def source_of(plan: Plan) -> SustainedSource:
    """Return the source of a model's steps."""
    return _source(plan.model, plan.sequence, plan.precision, plan.system)


@cache
def _source(model: str, sequence: int, precision: str, system: str) -> SustainedSource:
    device = devices.get(CLUSTERS[system][0])
    key = model, sequence, precision
    made = PredictedSource(workload(*key), device, like=_KNOWN.get(key))
    _KNOWN.setdefault(key, made)
    return SustainedSource(made, device, precision)


def workload(model: str, sequence: int, precision: str) -> Workload:
    """Return the training step of a model."""
    one = MODELS[model]
    config: Mapping[str, object] = {
        **one.config, "num_hidden_layers": one.layers, "max_position_embeddings": sequence,
    }  # fmt: skip
    text = json.dumps(config, sort_keys=True)
    folder = cache_root() / "language-models" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text)
    return Workload(
        f"hf:{folder}", loss="model", sequence=sequence, mode="training_step", precision=precision,
        optimizer="adamw-fused",
    )  # fmt: skip
