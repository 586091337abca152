"""Keep what ``benchmarks.distributed_jobs.plans`` measured: ``python -m benchmarks.plans.gloo_store FOLDER ...``.

Writes tests/fixtures/plan_runs.json, for each folder: the step of each job, the curves of its links, layers timed by
themselves and out of the traces, and replays of the traced jobs. A visit of a job whose reference product took
``MOST_OFF`` longer than the usual one of the folder is rejected; a job's step is the median of the visits that are
left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.networks import make
from benchmarks.distributed_jobs.scenario import Scenario, from_dict
from cdmpp.plans.sources.traced_layers import traced_layers
from cdmpp.platform.files import read_json
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import contention_free, replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.copies import Copies, copies_of
from cdmpp.steps.transforms.edit import each_op
from cdmpp.trace.folder import PROBE, read_job, read_probe

FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "plan_runs.json"
MOST_OFF = 0.1
_COPIES = [one.name for one in fields(Copies)]


def layers_of(tables: Sequence[Mapping[str, Any]], network: str) -> list[Layer]:
    """Blocks of a network: the mean of the tables, the loss in the last block."""
    own = [one for one in tables if one["network"] == network]
    layers = own[0]["layers"]
    blocks: dict[str, list[int]] = {}
    for place, one in enumerate(layers):
        name = one["name"].partition(".")[0]
        blocks.setdefault(name if name != "loss" else list(blocks)[-1], []).append(place)
    sizes = [int(sum(4 * np.prod(s) for i in places for s, _ in layers[i]["parameters"])) for places in blocks.values()]
    update_s, found = float(np.mean([one["update_s"] for one in own])), list[Layer]()
    for (name, places), size in zip(blocks.items(), sizes, strict=True):
        seconds = [
            float(np.mean([sum(one["layers"][i][what] for i in places) for one in own]))
            for what in ("forward_s", "backward_s")
        ]
        output = layers[[i for i in places if layers[i]["name"] != "loss"][-1]]["output_bytes"]
        share = update_s * size / sum(sizes)
        found.append(Layer(name, *seconds, size, output, update_s=share, examples=own[0]["batch"]))
    return found


def usual_s(visits: Sequence[Mapping[str, Any]]) -> float:
    """The reference product of an undisturbed machine: the lower quartile of all."""
    return float(np.percentile([s for one in visits for rank in one["ranks"] for s in rank["reference_s"]], 25))


def is_calm(visit: Mapping[str, Any], reference_s: float) -> bool:
    """True if the references before and after a visit took at most ``MOST_OFF`` longer than ``reference_s``.

    Of each the fastest rank counts: others may share their core with a rank that is not done yet.
    """
    ends = zip(*(rank["reference_s"] for rank in visit["ranks"]), strict=True)
    return max(map(min, ends)) <= (1 + MOST_OFF) * reference_s


def run_of(folder: Path) -> dict[str, Any]:
    """Everything that predictions need of one folder."""
    visits, tables, packed = (_lines(folder / f"{name}.jsonl") for name in ("visits", "layers", "packed"))
    reference_s = usual_s(visits)
    calm = [one for one in visits if is_calm(one, reference_s)]
    jobs = list[dict[str, Any]]()
    for name, scenario in {one["name"]: one["scenario"] for one in visits}.items():
        own = [one for one in visits if one["name"] == name and not one["is_traced"]]
        each = [float(np.median([np.median(rank["steps_s"]) for rank in one["ranks"]])) for one in own if one in calm]
        jobs.append({"scenario": _told(from_dict(scenario)), "visits_s": each, "rejected": len(own) - len(each)})
    layers = {network: layers_of(tables, network) for network in dict.fromkeys(one["network"] for one in tables)}
    return {
        "reference_s": reference_s,
        "jobs": jobs,
        "links": _links(folder),
        "packed": _packed(packed, tables),
        "layers": {network: [asdict(one) for one in own] for network, own in layers.items()},
        **_out_of_traces(folder, calm, layers),
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _out_of_traces(
    folder: Path, calm: Sequence[Mapping[str, Any]], layers: Mapping[str, Sequence[Layer]]
) -> dict[str, Any]:
    """Layers and copies of each network, medians of its traces, and the replay of each trace."""
    traced, replays = {network: list[list[Layer]]() for network in layers}, list[dict[str, Any]]()
    free: dict[tuple[str, str], list[StepGraph]] = {}
    for scenario, graph in _traces(folder, calm):
        known = {"measured_s": graph.measured.unprofiled_s, "traced_s": graph.measured.step_s}
        replays.append({"name": scenario.name, **known, "replayed_s": replay(graph).step_s})
        graph = without_profiler(graph) if scenario.scheme == "ddp" else graph
        free.setdefault((scenario.network, scenario.scheme), []).append(contention_free(graph))
        if scenario.scheme == "ddp":
            blocks = make(scenario.network)[0]
            modules = [sum(bool([*one.parameters(recurse=False)]) for one in block.modules()) for block in blocks]
            traced[scenario.network].append(traced_layers(graph, layers[scenario.network], modules))
    copies = {
        network: [copies_of(*pair) for pair in zip(free[network, "fsdp"], free[network, "ddp"], strict=False)]
        for network in layers
    }
    return {
        "traced": {
            network: [
                asdict(_median(rows, ("forward_s", "backward_s", "update_s"))) for rows in zip(*many, strict=True)
            ]
            for network, many in traced.items()
        },
        "copies": {network: asdict(_median(many, _COPIES)) for network, many in copies.items()},
        "replays": replays,
    }


def without_profiler(graph: StepGraph) -> StepGraph:
    """Scale what ranks compute, by 0 to 2, so that the replay takes as long as the job's steps without the profiler."""

    def scaled(by: float) -> StepGraph:
        return each_op(
            graph, lambda op: replace(op, duration_s=by * op.duration_s, gap_s=by * op.gap_s, delay_s=by * op.delay_s)
        )

    low, high = 0.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        is_less = replay(scaled(middle)).step_s < graph.measured.unprofiled_s
        low, high = (middle, high) if is_less else (low, middle)
    return scaled((low + high) / 2)


def _traces(folder: Path, calm: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Scenario, StepGraph]]:
    """The traced step of each visit, with what was timed on its links."""
    for one in calm:
        if one["is_traced"]:
            scenario = from_dict(one["scenario"])
            graph = read_job(folder / "traces" / scenario.name / str(one["round"]))
            rows, share = read_probe(folder / "probes" / "before" / _title(2, 2, scenario.mbit) / PROBE)
            yield scenario, replace(graph, processor_share=share, measured=replace(graph.measured, probed=rows))


def _median(many: Sequence[Any], names: Sequence[str]) -> Any:
    """The first of them with the medians of some fields."""
    return replace(many[0], **{name: float(np.median([getattr(one, name) for one in many])) for name in names})


def _packed(packed: Sequence[Mapping[str, Any]], tables: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Network -> how many times as long two processes on one core take as one after the other; 1: not timed."""

    def step_s(of: Sequence[Mapping[str, Any]], network: str) -> float:
        return float(np.mean([one["step_s"] for one in of if one["network"] == network]))

    return {
        network: step_s(packed, network) / (2 * step_s(tables, network)) if packed else 1.0
        for network in dict.fromkeys(one["network"] for one in tables)
    }


def _title(size: int, ranks: int, mbit: int) -> str:
    return f"{size} of {ranks} ranks, {mbit} Mbit"


def _links(folder: Path) -> dict[str, Any]:
    """Curves of collectives: the mean of those before and after the rounds."""
    found = {}
    for own in sorted((folder / "probes" / "before").iterdir()):
        tables = [read_json(folder / "probes" / when / own.name / PROBE) for when in ("before", "after")]
        seconds: dict[tuple[str, int], list[float]] = {}
        for table in tables:
            for row in table["rows"]:
                seconds.setdefault((row["kind"], row["bytes"]), []).append(row["latency_s"])
        rows = [{"kind": kind, "bytes": size, "latency_s": float(np.mean(s))} for (kind, size), s in seconds.items()]
        share = float(np.mean([table["processor_share"] for table in tables]))
        found[own.name] = {"backend": tables[0]["backend"], "processor_share": share, "rows": rows}
    return found


def _told(scenario: Scenario) -> dict[str, Any]:
    """Fields that are not what a scenario has by itself."""
    told = {one.name: getattr(scenario, one.name) for one in fields(scenario)}
    return {
        name: value
        for name, value in told.items()
        if name in ("network", "scheme", "mbit")
        or (value != getattr(Scenario("", "", 0), name) and name != "is_traced")
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    kept = [run_of(Path(one)) for one in sys.argv[1:]]
    FILE.write_text(json.dumps(_rounded(kept)) + "\n")
