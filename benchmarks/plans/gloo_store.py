"""Keep what ``benchmarks.distributed_jobs.plans`` measured: ``python -m benchmarks.plans.gloo_store FOLDER ...``.

Writes tests/fixtures/plan_runs.json: the step of each job, the curves of its links, layers, timed by themselves and
out of one trace a network, and replays of all traced jobs. Of a job that later folders have again the last visit
counts. Jobs of a visit in which the traced job of the same network, ranks and rate took ``MOST_OFF`` longer than in
another visit are marked as disturbed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.networks import make
from benchmarks.distributed_jobs.scenario import Scenario, from_dict
from benchmarks.plans.gloo_trace import traced_layers
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import replay
from cdmpp.trace.graph_file import graph_from_dict

FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "plan_runs.json"
MOST_OFF = 0.1
BASES = {"gpt-long": "gpt-long-ddp-2ranks-200Mbit-1x4-25MB", "cnn-large": "cnn-large-ddp-2ranks-100Mbit-1x4-25MB"}
"""Network -> the job whose trace is read."""


def layers_of(tables: Sequence[Mapping[str, Any]], network: str) -> list[Layer]:
    """Blocks of a network at each number of examples: the mean of the tables, the loss in the last block."""
    found = list[Layer]()
    for batch in sorted({one["batch"] for one in tables if one["network"] == network}):
        own = [one for one in tables if (one["network"], one["batch"]) == (network, batch)]
        layers = own[0]["layers"]
        blocks: dict[str, list[int]] = {}
        for place, one in enumerate(layers):
            name = one["name"].partition(".")[0]
            blocks.setdefault(name if name != "loss" else list(blocks)[-1], []).append(place)
        sizes = [
            int(sum(4 * np.prod(s) for i in places for s, _ in layers[i]["parameters"])) for places in blocks.values()
        ]
        update_s = float(np.mean([one["update_s"] for one in own]))
        for (name, places), size in zip(blocks.items(), sizes, strict=True):
            seconds = [
                float(np.mean([sum(one["layers"][i][what] for i in places) for one in own]))
                for what in ("forward_s", "backward_s")
            ]
            output = layers[[i for i in places if layers[i]["name"] != "loss"][-1]]["output_bytes"]
            found.append(Layer(name, *seconds, size, output, update_s=update_s * size / sum(sizes), examples=batch))
    return found


def stored(folders: Sequence[Path]) -> dict[str, Any]:
    """Everything that predictions need."""
    visits = [[json.loads(line) for line in (one / "rows.jsonl").read_text().splitlines()] for one in folders]
    tables = [json.loads(line) for line in (folders[0] / "layers.jsonl").read_text().splitlines()]
    bases: dict[Any, dict[int, float]] = {}
    runs: dict[str, dict[str, Any]] = {}
    links: dict[str, dict[str, Any]] = {}
    traced: dict[str, list[dict[str, Any]]] = {}
    replays = list[dict[str, Any]]()
    layers = {network: layers_of(tables, network) for network in BASES}
    for visit, rows in enumerate(visits):
        for row in rows:
            scenario = from_dict(row["scenario"])
            if not scenario.batch:
                continue
            if scenario.scheme == "ddp" and scenario.micro_batches == 1:
                bases.setdefault(_setting(scenario), {})[visit] = row["unprofiled_s"]
            if row["name"] in BASES.values() and "job" in row:
                network, graph = scenario.network, graph_from_dict(row["job"])
                own = [one for one in layers[network] if one.examples == scenario.batch]
                model = make(network)[0]
                traced[network] = [asdict(one) for one in traced_layers(graph, model, own)]
            if "job" in row:
                graph = graph_from_dict(row["job"])
                replayed_s = {"measured_s": row["unprofiled_s"], "traced_s": graph.measured.step_s}
                replays.append({"name": row["name"], **replayed_s, "replayed_s": replay(graph).step_s})
            if "probe" in row:
                _add(links.setdefault(f"{scenario.ranks} ranks, {scenario.mbit} Mbit", {}), row["probe"])
            seconds = {"step_s": row["unprofiled_s"], "quartiles_s": row["quartiles_s"]}
            runs[row["name"]] = {"scenario": _told(scenario), **seconds, "visit": visit}
    for run in runs.values():
        each = bases[_setting(Scenario(**run["scenario"]))]
        run["is_disturbed"] = each.get(run["visit"], 0.0) > (1 + MOST_OFF) * min(each.values())
    by_themselves = {network: [asdict(one) for one in own] for network, own in layers.items()}
    return {"runs": list(runs.values()), "links": links, "layers": by_themselves, "traced": traced, "replays": replays}


def _add(kept: dict[str, Any], probe: Mapping[str, Any]) -> None:
    """Curves of the last visit that timed a kind."""
    new = {row["kind"] for row in probe["rows"]}
    rows = [row for row in kept.get("rows", ()) if row["kind"] not in new] + list(probe["rows"])
    kept.update({**probe, "rows": rows})


def _setting(scenario: Scenario) -> tuple[Any, ...]:
    return scenario.network, scenario.ranks, scenario.mbit


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
    FILE.write_text(json.dumps(_rounded(stored([Path(one) for one in sys.argv[1:]]))) + "\n")
