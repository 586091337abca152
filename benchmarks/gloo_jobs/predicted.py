"""What is predicted of a recorded job, next to what it exchanged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.gloo_jobs.jobs import JOBS, NETWORKS, WIDTHS, Job
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.groups import replica_exchanges
from cdmpp.plans.lower import lower_work
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.placement import micro_batches_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.module_span import ModuleSpan, Rows
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.accumulate import accumulate

RECORDINGS = Path(__file__).parents[2] / "tests" / "fixtures" / "gloo_jobs.json"
MIB = 2**20
_EXAMPLES = NETWORKS["six layers of rising width"][1][0]
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


def recordings() -> list[dict[str, Any]]:
    """All recorded jobs."""
    return json.loads(RECORDINGS.read_text())


def job_of(recording: dict[str, Any]) -> Job:
    """The job of a recording."""
    return next(one for one in JOBS if (one.name, one.network) == (recording["job"], recording["network"]))


def plan_of(job: Job, ranks: int) -> Plan:
    """The plan of a job, of a pipeline that of the ranks of a stage; ``CdmppError`` where none describes it."""
    given = dict(job.settings)
    if job.scheme == "tp":
        return Plan(DDP(), ParallelDegrees(tp=ranks))
    if job.scheme == "ps":
        strategy = ParameterServer(servers=given["servers"] or None, part_bytes=given["part_bytes"])
        return Plan(strategy, ParallelDegrees(dp_replicate=ranks))
    if job.scheme == "pipeline":
        own = (len(given["cuts"]) + 1) // job.stages_per_rank
        cuts = tuple(f"layer.{place}" for place in given["cuts"])
        pipeline = Pipeline(given["schedule"], job.batches, cuts, stages_per_rank=given.get("stages_per_rank"))
        return Plan(DDP(), ParallelDegrees(pp=own, dp_replicate=ranks // own), model_parallel=(pipeline,))
    if job.scheme == "zero":
        return Plan(ZeRO(), ParallelDegrees(dp_replicate=ranks), job.batches)
    if "fsdp" in job.scheme:
        replicas, is_pipelined = given.pop("replicas", 1), given.pop("stages", 1) > 1
        degrees = ParallelDegrees(dp_replicate=replicas, dp_shard=ranks // replicas)
        return Plan((HSDP if replicas > 1 else FSDP)(is_pipelined=is_pipelined, **given), degrees, job.batches)
    if given.pop("static_graph", False):
        given.pop("find_unused_parameters", None)
    caps = given.pop("bucket_cap_mb_list", None) or ([given.pop("bucket_cap_mb")] if "bucket_cap_mb" in given else None)
    if caps:
        given["bucket_bytes"] = tuple(cap * MIB for cap in caps)
    return Plan(DDP(**given), ParallelDegrees(dp_replicate=ranks), job.batches)


def exchanges_of(recording: dict[str, Any]) -> tuple[Exchange, ...]:
    """What the plan of a recorded job exchanges in a step; ``CdmppError`` where no plan describes it."""
    job = job_of(recording)
    if job.scheme == "pipeline":
        return _chain_exchanges(plan_of(job, recording["ranks"]))
    ranks = job.stage_ranks(recording["ranks"])
    return planned_exchanges(StepGraph(tuple(_rank(rank, recording) for rank in range(ranks))), plan_of(job, ranks))


def planned_exchanges(graph: StepGraph, plan: Plan) -> tuple[Exchange, ...]:
    """What a step of one batch exchanges under a plan on gloo."""
    plan = replace(plan, strategy=plan.strategy.on_backend("gloo"))
    batches = accumulate(graph, plan.gradient_accumulation_steps)
    return replica_exchanges(batches, plan, Mesh(plan.degrees), range(plan.ranks))


def _chain_exchanges(plan: Plan) -> tuple[Exchange, ...]:
    """What stages of the chain of layers exchange, at as many examples as its jobs have."""
    rows = _EXAMPLES // micro_batches_of(plan)
    layers = [
        Layer(f"layer.{place}", 1.0, 2.0, 4 * (inputs + 1) * outputs, 4 * rows * outputs, weights_s=1.0)
        for place, (inputs, outputs) in enumerate(pairwise(WIDTHS))
    ]
    work = RankWork(graph_of_layers(layers).ranks[0])
    return lower_work(work, plan, fitted(AlphaBeta(1e-4, 1e-9), plan.ranks), fold=False).graph.exchanges


def rank_rows(exchanges: Iterable[Exchange], rank: int) -> list[tuple[str, int]]:
    """Kind and bytes of what one rank takes part in, in the order in which it does; a message is sent or received."""
    own = sorted((one for one in exchanges if rank in one.after), key=lambda one: one.after[rank])
    kinds = [one.kind if one.peers is None else "send" if one.peers[0] == rank else "recv" for one in own]
    return [(kind, one.bytes) for kind, one in zip(kinds, own, strict=True)]


def rows_of(exchanges: Iterable[Exchange]) -> list[tuple[str, int]]:
    """Kind and bytes of collectives that rank 0 takes part in, as gloo runs them."""
    return [
        (Collective(one.kind, one.bytes, len(one.after), "gloo").runs_as.kind, one.bytes)
        for one in exchanges
        if 0 in one.after
    ]


def sent_bytes(exchanges: Iterable[Exchange], ranks: int) -> list[float]:
    """Bytes that each rank sends; of a collective as many as the rank that sends most."""
    sent = [0.0] * ranks
    for one in exchanges:
        for rank in one.after if one.peers is None else one.peers[:1]:
            if one.kind == "push_pull":
                sent[rank] += one.bytes * (ranks - 1 if rank == one.server else 1)
            else:
                sent[rank] += Collective(one.kind, one.bytes, len(one.after), "gloo").traffic_bytes
    return sent


def recorded_traffic_bytes(recording: dict[str, Any]) -> float:
    """Bytes that the model of collectives says of the recorded sizes, for the rank that sends most."""
    if "replicas" in job_of(recording).settings:  # groups of two sizes, which no recording tells apart
        return max(sent_bytes(exchanges_of(recording), recording["ranks"]))
    group = job_of(recording).group(recording["ranks"])
    found = [(kind, size) for kind, size in _recorded(recording) if kind not in ("send", "recv")]
    return sum(Collective(kind, size, group, "gloo").traffic_bytes for kind, size in found)


def page(found: Iterable[dict[str, Any]]) -> str:
    """The page of all recordings."""
    rows = [_row(one) for one in found]
    told = [row for row in rows if row[-1] != "refused"]
    same = sum(row[-1] == "yes" for row in told)
    head = ["job", "network", "ranks", "exchanges", "predicted", "MB sent", "predicted MB", "equal"]
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * 2 + ["---:"] * 5 + ["---"], *rows)]
    return (
        "# Exchanges\n\n"
        "Small training jobs of 2 to 4 ranks with PyTorch's gloo: what they exchange in the fifth step, by PyTorch's "
        "profiler and by the kernel's count of TCP bytes, next to what the same plan is predicted to exchange. "
        "*Equal*: number, kinds, sizes and order of all exchanges; two threads of gloo may swap neighbours. *MB sent*: "
        "by the rank that sends most; gloo adds 48 bytes a message, which are not predicted. Of FSDP in a "
        "pipeline those of a stage count, without its messages; of other pipelines those that all ranks send or join. "
        "A job that no plan describes is refused.\n\n"
        f"Of {len(told)} jobs that a plan describes {same} are equal.\n\n" + "\n".join(lines) + "\n\n"
        "`python -m benchmarks.gloo_jobs` records them again, and writes this page.\n"
    )


def is_equal(recording: dict[str, Any], exchanges: tuple[Exchange, ...]) -> bool:
    """True if a job exchanged just what is predicted; of two that are under way at once either may begin first."""
    ranks = recording["ranks"]
    if any(one.kind == "push_pull" for one in exchanges):
        count = sum(2 * (ranks - 1) if one.server == 0 else 2 for one in exchanges)
        predicted = sent_bytes(exchanges, ranks)
        close = zip(recording["sent_bytes"], predicted, strict=True)
        return len(recording["exchanges"]) == count and all(math.isclose(a, b, rel_tol=0.01) for a, b in close)
    if "other_ranks" in recording:
        every = [recording["exchanges"], *recording["other_ranks"]]
        return all(_is_equal_on(rank, own, exchanges) for rank, own in enumerate(every))
    recorded = _recorded(recording)
    predicted_rows = rows_of(exchanges)
    return sorted(recorded) == sorted(predicted_rows) and not _swapped(recorded, predicted_rows)


def _is_equal_on(rank: int, own: list[list[Any]], exchanges: tuple[Exchange, ...]) -> bool:
    """True if a rank exchanged what is predicted, and sent it in this order; it receives in one batch with sends."""
    recorded, predicted = [(kind, size) for _, kind, _, size in own], rank_rows(exchanges, rank)
    sent = ([size for kind, size in rows if kind == "send"] for rows in (recorded, predicted))
    return sorted(recorded) == sorted(predicted) and next(sent) == next(sent)


def _recorded(recording: dict[str, Any]) -> list[tuple[str, int]]:
    """Kind and bytes of what was exchanged; of a stage of a pipeline without its messages to others."""
    messages = ("send", "recv") if "stages" in job_of(recording).settings else ()
    return [(kind, size) for _, kind, _, size in recording["exchanges"] if kind not in messages]


def _swapped(recorded: list[tuple[str, int]], predicted: list[tuple[str, int]]) -> bool:
    """True if an exchange is more than one place from where it is predicted: gloo has two threads."""
    left = list(recorded)
    for one in predicted:
        if one not in left[:2]:
            return True
        left.remove(one)
    return False


def _row(recording: dict[str, Any]) -> list[str]:
    sent = max(recording["sent_bytes"]) / 1e6
    first = [recording["job"], recording["network"], str(recording["ranks"]), str(len(_recorded(recording)))]
    try:
        exchanges = exchanges_of(recording)
    except CdmppError:
        return [*first, "-", f"{sent:.3f}", "-", "refused"]
    count = sum(0 in one.after for one in exchanges)
    if "other_ranks" in recording:
        every = [recording["exchanges"], *recording["other_ranks"]]
        first[-1] = str(sum(row[1] != "recv" for own in every for row in own))
        count = sum(len(one.after) if one.peers is None else 1 for one in exchanges)
    if any(one.kind == "push_pull" for one in exchanges):
        count = sum(2 * (recording["ranks"] - 1) if one.server == 0 else 2 for one in exchanges)
    predicted = max(sent_bytes(exchanges, recording["ranks"])) / 1e6
    equal = "yes" if is_equal(recording, exchanges) else "no"
    return [*first, str(count), f"{sent:.3f}", f"{predicted:.3f}", equal]


def _rank(rank: int, recording: dict[str, Any]) -> RankGraph:
    """A rank whose modules run in the order in which the model has them, a second forward and two backward each."""
    parameters = [(name, dtype, tuple(shape)) for name, dtype, shape in recording["parameters"]]
    modules = [list(own) for _, own in groupby(parameters, key=lambda one: one[0].rpartition(".")[0])]
    count, gradients = len(modules), list[Gradient]()
    ops = [*(Op("forward", "forward", 1.0) for _ in modules), *(Op("backward", "backward", 2.0) for _ in modules)]
    spans: dict[str, list[tuple[int, Rows]]] = {}
    for place, own in enumerate(modules):
        for name, dtype, shape in own:
            row = _BYTES[dtype] * math.prod(shape[1:])
            is_used = name not in job_of(recording).unused
            ready = 2 * count - 1 - place if is_used else count
            gradients.append(Gradient(name, shape[0] * row, ready, dtype, is_used))
            parts = name.split(".")
            block = ".".join(parts[:2]) if parts[0] == "blocks" else "root"
            spans.setdefault(block, []).append((place, (shape[0], row, 0)))
    return RankGraph(
        rank, tuple(ops), tuple(gradients), tuple(_span(block, own, count) for block, own in spans.items()),
        buffers=tuple(StepBuffer(size, dtype) for dtype, size in recording["buffers"]),
    )  # fmt: skip


def _span(block: str, own: list[tuple[int, Rows]], count: int) -> ModuleSpan:
    first, last = own[0][0], own[-1][0]
    rows = tuple(one for _, one in own)
    size = sum(length * row for length, row, _ in rows)
    backward = 2 * count - 1 - last, 2 * count - 1 - first
    return ModuleSpan(block, size, (first, last), backward, block == "root", rows)
