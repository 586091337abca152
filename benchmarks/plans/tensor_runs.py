"""Measure real steps of decoders under tensor and pipeline parallel plans on gloo, and what they are made of.

    python -m benchmarks.plans.tensor_runs [--steps 8] [case ...]     # writes tests/fixtures/tensor_runs.json

Parts are timed without any step of the job, by as many processes at the same time as compute there. They are operators
of the divided graph, with the time at which each exchange would begin; each collective of the plan by itself; what the
host does more for DTensors; and, of a pipeline, its messages and what an operator loses next to one, by ``probe``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks.plans.decoder_jobs import (
    AXES,
    BATCH,
    CASES,
    TOKENS,
    WORDS,
    Case,
    Decoder,
    Step,
    loss_of,
    parallelized,
    plan_of,
    step_of,
)
from cdmpp import devices
from cdmpp.collectives.topology import topology_of
from cdmpp.network.eager.divided import title_of
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.plans.lower import lower
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.trace.folder import PROBE
from cdmpp.trace.prober import probe

FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "tensor_runs.json"
_SETTLE = 2
_STAMPS = list[tuple[Any, float]]()
"""Each entry was reached at its time."""


class _Mark(torch.autograd.Function):
    """It notes when a value was made, or its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        ctx.backward_of = backward
        if forward is not None:
            _STAMPS.append((forward, time.perf_counter()))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if ctx.backward_of is not None:
            _STAMPS.append((ctx.backward_of, time.perf_counter()))
        return grads[0], None, None


def marked(x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
    """Return a value whose making, and that of its gradient, is noted under these names; None: it is not."""
    return _Mark.apply(x, forward, backward)


def median_s(run: Callable[[], Any], steps: int) -> float:
    """Return the median seconds of ``run`` over some turns, behind a barrier each, after some to warm up."""
    found = []
    for number in range(steps + _SETTLE):
        dist.barrier()
        begin = time.perf_counter()
        run()
        if number >= _SETTLE:
            found.append(time.perf_counter() - begin)
    return statistics.median(found)


def computed(case: Case, steps: int, is_active: bool) -> dict[str, Any]:
    """Time the operators of the divided graph, with the update and without exchanges.

    Returns:
        Of the ranks that compute: the median seconds of a step where all wait for the last one at each exchange; of one
        rank by itself; and of one rank's layers and update.
    """
    rows = _rows(case, steps, is_active)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, rows)
    active = [one for one in every if one]
    together_s = [sum(map(max, zip(*(_spans(rank[t]) for rank in active), strict=True))) for t in range(steps)]
    layers = [_layers(case, row) for row in active[0]]
    return {
        "together_s": statistics.median(together_s),
        "alone_s": statistics.median(sum(_spans(row)) for row in active[0]),
        "layers_s": {name: statistics.median(one[name] for one in layers) for name in layers[0]},
    }


def _rows(case: Case, steps: int, is_active: bool) -> list[list[tuple[Any, float]]]:
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
    step = export_step(Workload(Decoder(case.hidden, case.blocks), tokens, mode="training_step"), "cpu")
    divided: Any = step.exported
    if case.tp > 1:
        divided = Tensor(sequence_parallel=case.is_sequence).divide(step.exported, case.tp)
    _mark(divided)
    given, inputs, parameters = [], iter(step.exported.example_inputs[0]), []
    for node in divided.graph.nodes:
        if node.op == "placeholder":
            is_input = node.name not in divided.graph_signature.inputs_to_parameters
            value = next(inputs) if is_input else nn.Parameter(0.02 * torch.randn(node.meta["val"].shape))
            given.append(value)
            parameters += [] if is_input else [value]
    module, rows = torch.fx.GraphModule(divided.graph_module, divided.graph), []
    each = [nn.Parameter(one[: max(1, len(one) // case.shards)].detach().clone()) for one in parameters]
    optimizer = torch.optim.AdamW(each, lr=1e-4, foreach=False)
    for number in range(steps + _SETTLE):
        dist.barrier()
        if not is_active:
            continue
        for _ in range(min(case.micro_batches, 2)):  # of several micro-batches, later ones add to gradients
            _STAMPS[:] = [("begin", time.perf_counter())]
            loss = module(*given)[0]
            _STAMPS.append(("loss", time.perf_counter()))
            loss.backward()
            _STAMPS.append(("end", time.perf_counter()))
        for one, own in zip(parameters, each, strict=True):
            own.grad, one.grad = one.grad[: len(own)], None
        optimizer.step()
        _STAMPS.append(("update", time.perf_counter()))
        if number >= _SETTLE:
            rows.append([*_STAMPS])
    return rows


def _mark(divided: Any) -> None:
    """Note when each exchange would begin, and when each layer ends."""
    graph, named = divided.graph, {node.name: node for node in divided.graph.nodes}
    ends = dict[str, Any]()
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            ends[_layer_of(node)] = node
    for one in getattr(divided, "exchanges", ()):
        node = named[one.node]
        if node.op == "placeholder":
            continue
        if "gradient" in one.when:
            x = node.all_input_nodes[0]
            with graph.inserting_before(node):
                node.replace_input_with(x, graph.call_function(marked, (x, None, "exchange")))
        else:
            _behind(graph, node, "exchange", None)
    for name, node in [*ends.items()][:-1]:
        _behind(graph, node, f"{name} forward", f"{name} backward")


def _behind(graph: Any, node: Any, forward: Any, backward: Any) -> None:
    with graph.inserting_after(node):
        new = graph.call_function(marked, (node, forward, backward))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def _layer_of(node: Any) -> str:
    """Name the embedding, a block, or the rest as ``head``."""
    title = title_of(node)
    return ".".join(title.split(".")[:2]) if title.startswith("blocks.") else "words" if title == "words" else "head"


def _spans(row: list[tuple[Any, float]]) -> list[float]:
    return [b - a for (_, a), (_, b) in zip(row, row[1:], strict=False)]


def _layers(case: Case, row: list[tuple[Any, float]]) -> dict[str, float]:
    """Seconds of the passes of each layer, and of the update."""
    at = dict(row)
    names = ["words", *(f"blocks.{number}" for number in range(case.blocks))]
    ends = [at["begin"], *(at[f"{name} forward"] for name in names), at["loss"]]
    back = [at["loss"], *(at[f"{name} backward"] for name in reversed(names)), at["end"]]
    every = [*names, "head"]
    found = {f"{name} forward": b - a for name, a, b in zip(every, ends, ends[1:], strict=False)}
    found |= {f"{name} backward": b - a for name, a, b in zip(reversed(every), back, back[1:], strict=False)}
    return {**found, "update": at["update"] - at["end"]}


def hosted_s(case: Case, steps: int, is_active: bool) -> dict[str, float]:
    """Return the processor seconds that the host takes more for passes and update of DTensors and replicas.

    Meshes have one rank. The layers are as large as those of the job, so that the host's code and data have left the
    caches as they do there.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1, 1, 1), mesh_dim_names=("others", *AXES[1:]))
    tokens, target = torch.randint(0, WORDS, (2, BATCH, TOKENS))
    made = []
    for is_divided in (False, True) if is_active else ():
        model: Any = Decoder(case.hidden, case.blocks)
        if is_divided:
            model = parallelized(case, model, mesh)
            model = DistributedDataParallel(model, device_mesh=mesh["dp_replicate"]) if case.replicas > 1 else model
        made.append(Step(lambda m=model: loss_of(m(tokens), target).backward(), [*model.parameters()], is_divided))
    more: dict[str, list[float]] = {"passes": [], "update": []}
    for number in range(steps + _SETTLE):
        dist.barrier()
        times = [(_processor_s(one.passes), _processor_s(one.update)) for one in made]
        if number >= _SETTLE and times:
            for place, name in enumerate(more):
                more[name].append(times[1][place] - times[0][place])
    return {name: statistics.median(found) if found else 0.0 for name, found in more.items()}


def _processor_s(run: Callable[[], Any]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def collectives(case: Case) -> list[tuple[str, str, str, str, int]]:
    """List the collectives that rank 0 of a plan joins, but for the messages of its pipeline.

    Returns:
        Name, phase of the step that waits for it, axis of its group, kind and bytes of each.
    """
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
    workload = Workload(Decoder(case.hidden, case.blocks), tokens, optimizer="adamw-for-loop")
    plan, batch = plan_of(case._replace(schedule="")), BATCH * case.shards * case.replicas
    source = PredictedSource(workload, devices.get("t4"))
    made = lower(source, plan, topology_of(plan.ranks, "t4", link="pcie4"), batch, fold=False).graph
    ops, found = made.ranks[0].ops, list[tuple[str, str, str, str, int]]()
    for one in made.exchanges:
        if 0 in one.after:
            axis = "tp" if case.tp > 1 and 1 in one.ranks else "dp_shard" if case.shards > 1 else "dp_replicate"
            waiting = min(one.before.get(0, (one.after[0],)))
            phase = ops[waiting].phase if waiting < len(ops) else "update"
            found.append((one.name, phase, axis, one.kind, one.bytes))
    return found


def exchanged(case: Case, mesh: Any, steps: int, is_active: bool) -> list[tuple[str, str, str, str, int, float]]:
    """Return the collectives with the seconds that each takes by itself."""
    known, found = dict[tuple[str, str, int], float](), []
    for name, phase, axis, kind, size in collectives(case):
        if (key := (axis, kind, size)) not in known:
            run = _collective(kind, size, mesh[axis].size(), mesh.get_group(axis))
            known[key] = median_s(run if is_active else lambda: None, steps)
        found.append((name, phase, axis, kind, size, known[key]))
    return found


def _collective(kind: str, size: int, many: int, group: Any) -> Callable[[], Any]:
    whole, part = torch.zeros(-(-size // (4 * many)) * many), torch.zeros(-(-size // (4 * many)))
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    assert kind == "reduce_scatter", kind
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def measured(case: Case, mesh: Any, steps: int, hosts_only: bool) -> dict[str, Any]:
    """Measure one case: its parts, and then its steps."""
    is_active = not case.schedule or case.tp == 1 or mesh.get_local_rank("pp") == 0
    found: dict[str, Any] = {"case": case.name, "host_s": hosted_s(case, steps, is_active) if case.tp > 1 else {}}
    if hosts_only:
        return found
    found |= computed(case, steps, is_active)
    found["exchanges"] = exchanged(case, mesh, steps, is_active) if case.tp > 1 else []
    if case.schedule:
        with tempfile.TemporaryDirectory() as folder:
            probe(folder, ("send_recv",), budget_s=1.0)
            if dist.get_rank() == 0:
                found["probe"] = json.loads((Path(folder) / PROBE).read_text())
    found["step_s"] = median_s(step_of(case, mesh), steps)
    return found


def _rank(rank: int, cases: list[Case], steps: int, hosts_only: bool, folder: str, log: Path) -> None:
    ranks = cases[0].ranks
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for case in (cases[0], *cases):  # the first one runs twice: processes are not warm before
        mesh = init_device_mesh("cpu", case.sizes, mesh_dim_names=AXES)
        found = measured(case, mesh, steps, hosts_only)
        every: list[Any] = [None] * ranks
        dist.all_gather_object(every, found.get("step_s", 0.0))
        if rank == 0:
            found |= {} if hosts_only else {"step_s": statistics.mean(every)}
            with log.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(case.name, f"{1e3 * every[0]:.0f} ms", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Measure all cases, or those that are named; cases that the file has and that are not measured stay in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of a case that count")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--hosts", action="store_true", help="measure the work of the host again, and nothing else")
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    asked, log = [one for one in CASES if not given.cases or one.name in given.cases], given.file.with_suffix(".jsonl")
    for ranks in sorted({one.ranks for one in asked}):
        with tempfile.TemporaryDirectory() as folder:
            own = [one for one in asked if one.ranks == ranks]
            torch.multiprocessing.spawn(_rank, (own, given.steps, given.hosts, folder, log), ranks)
    stored = json.loads(given.file.read_text())["cases"] if given.file.exists() else []
    kept = {one["case"]: one for one in stored}
    for line in log.read_text().splitlines():
        one = json.loads(line, parse_float=lambda text: float(f"{float(text):.5g}"))
        kept[one["case"]] = {**kept.get(one["case"], {}), **one}
    rows = [kept[one.name] for one in CASES if one.name in kept]
    given.file.write_text(json.dumps({"torch": torch.__version__, "cases": rows}) + "\n")
    log.unlink()


if __name__ == "__main__":
    main()
