"""Judge predictions of real runs of stages, and compare the runs with one device and with data parallel training.

python -m benchmarks.partition.judge [--runs FILE] [--publish]

    --runs FILE   what benchmarks.partition.measure wrote (default docs/measured/runs/partition.json)
    --publish     write docs/measured/partition-runs.json and its page
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.partition.layer_profile import chain_of
from benchmarks.partition.measure import METHODS, RUNS, runs
from benchmarks.partition.tasks import HELD_OUT, TRAININGS
from benchmarks.publish.markdown import replace_part
from benchmarks.publish.measured import measured
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.outcome import replayed
from cdmpp.platform.files import write_json

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [
    *(f"python -m benchmarks.partition.measure {part}" for part in ("link", "layers", "runs")),
    "python -m benchmarks.partition.judge --publish",
]
ONE, ALONE, TWO = "one device", "layers", "layers of two"
Run = Mapping[str, Any]
Runs = Mapping[str, Run]


def groups(found: Runs) -> Iterator[tuple[str, str, list[Run]]]:
    """Network, method, its runs by seed."""
    for network in TRAININGS:
        for method in METHODS:
            own = [run for run in found.values() if (run.get("network"), run.get("method")) == (network, method)]
            if own:
                yield network, method, sorted(own, key=lambda run: run["seed"])


def predicted(found: Runs, network: str, method: str, cuts: Sequence[int], layers: str) -> tuple[float, list[float]]:
    """Seconds of a step, and bytes of the stash of each stage, by the planner's replay of measured layers."""
    schedule, _, micro_batches = METHODS[method]
    link = AlphaBeta(**found["link"]["fit"])
    chain = chain_of(found[f"{layers}/{network}/{micro_batches}"], cuts, schedule, micro_batches, link)
    return replayed(chain).step_s, [cost.stash_bytes for cost in chain.costs]


def off(guess: float, was: float) -> float:
    return 100 * (guess / was - 1)


def speed_rows(found: Runs) -> list[list[str]]:
    rows, ones = [], {(run["network"], run["seed"]): run["step_s"] for _, name, own in groups(found) if name == ONE
                      for run in own}  # fmt: skip
    for network, method, own in groups(found):
        own = [run for run in own if (network, run["seed"]) in ones]
        step_s = float(np.mean([run["step_s"] for run in own]))
        gains = [ones[network, run["seed"]] / run["step_s"] for run in own]
        row = [network, method, str(len(own)), f"{1e3 * step_s:.1f}"]
        row += [f"{np.mean(gains):.2f}", f"{min(gains):.2f} to {max(gains):.2f}"]
        for layers in (ALONE, TWO):
            if not METHODS[method][0]:
                row += ["–", "–"]
                continue
            guess = predicted(found, network, method, own[0]["cuts"], layers)[0]
            row += [f"{1e3 * guess:.1f}", f"{off(guess, step_s):+.1f}"]
        rows.append(row)
    return rows


def accuracy_rows(found: Runs) -> list[list[str]]:
    ends = {(network, method, run["seed"]): run["held_out"][-1] for network, method, own in groups(found)
            for run in own}  # fmt: skip
    rows = []
    for network, method, own in groups(found):
        last = [ends[network, method, run["seed"]] for run in own]
        pairs = [(100 * ends[network, method, run["seed"]][2], 100 * ends[network, ONE, run["seed"]][2])
                 for run in own if (network, ONE, run["seed"]) in ends]  # fmt: skip
        gaps = [own_score - one for own_score, one in pairs]
        stale = max(own[0].get("staleness", [0]))
        rows.append(
            [network, method, str(len(own)), f"{last[0][0]:,}", str(stale), f"{np.mean([one for one, _ in pairs]):.1f}",
             f"{np.mean(gaps):+.1f}", f"{min(gaps):+.1f}", f"{np.mean([one[1] for one in last]):.3f}"]
        )  # fmt: skip
    return rows


def stash_rows(found: Runs) -> list[list[str]]:
    rows = []
    for network, method, own in groups(found):
        if not METHODS[method][0]:
            continue
        run = own[0]
        guesses = predicted(found, network, method, run["cuts"], ALONE)[1]
        for stage, (guess, was) in enumerate(zip(guesses, run["stash_bytes"], strict=True)):
            rows.append(
                [network, method, str(stage), str(run["live"][stage]), f"{was / 1e6:.2f}", f"{guess / 1e6:.2f}",
                 f"{off(guess, was):+.1f}", f"{run['weight_bytes'][stage] / 1e6:.2f}"]
            )  # fmt: skip
    return rows


def part_rows(found: Runs) -> list[list[str]]:
    """Where the time of a step goes on each stage, in ms."""
    rows, kinds = [], ("forward", "backward", "update", "receive", "send", "data")
    for network, method, own in groups(found):
        for stage in range(len(own[0].get("seconds", ()))):
            means = [1e3 * float(np.mean([run["seconds"][stage][kind] for run in own])) for kind in kinds]
            rows.append([network, method, str(stage), *(f"{mean:.1f}" for mean in means)])
    return rows


def tables(found: Runs) -> list[dict[str, Any]]:
    seeds = sorted({run["seed"] for run in found.values() if "seed" in run})
    sizes = "; ".join(
        f"{name}: {one.examples} examples a step, {one.steps} steps" for name, one in TRAININGS.items()
    )  # fmt: skip
    note = (
        f"Two virtual cores, one thread and one core a process, gloo over the loopback; seeds {seeds}. Networks: a CNN "
        "on the digits of scikit-learn, a transformer on the letters of this project's licence "
        f"({sizes}). Cut where the planner's costs say, from layers measured one after another on one core. Data "
        "parallel: DistributedDataParallel, half of each batch on each core. gpipe and 1f1b: four micro-batches a "
        "step. pipedream and delayed: the batch of a step is one micro-batch. Side by side: one stage, one thread for "
        "forward and one for backward passes, both cores. A step is the mean of the last three quarters of a run. "
        "Predicted: the replay with layers measured by themselves, on an idle machine, and with the same layers "
        "measured while the other core runs them too; no constant is fitted to a run."
    )
    failed = [f"{name} ({run['failed'].splitlines()[-1]})" for name, run in found.items() if "failed" in run]
    note += f" Runs that failed: {'; '.join(failed) or 'none'}."
    return [
        _table("Seconds of a step", note, COMMANDS,
               ["network", "by", "seeds", "step, ms", "speed-up, mean", "speed-up, range", "predicted, idle, ms",
                "error %", "predicted, both busy, ms", "error %"], speed_rows(found)),
        _table("Where the time goes", "Mean ms of a step on each stage.", [],
               ["network", "by", "stage", "forward", "backward", "update", "receive", "send", "data"],
               part_rows(found)),
        _table("Accuracy after the same samples",
               f"Per cent of {HELD_OUT} held-out examples (letters: of each of their letters), weights of the end of "
               "the run; the split and the initial weights differ by seed. Gap: points above one device of the same "
               "seed. Staleness: most updates between the weights of a gradient and its update.", [],
               ["network", "by", "seeds", "samples", "staleness", "accuracy %", "gap, mean", "gap, worst",
                "held-out loss"], accuracy_rows(found)),
        _table("Stash", "Most bytes kept between forward and backward passes, in MB: counted in the run, and what the "
               "planner says from bytes that each layer saves by itself. Weights: all versions.", [],
               ["network", "by", "stage", "under way", "counted", "predicted", "error %", "weights"],
               stash_rows(found)),
    ]  # fmt: skip


def _table(title: str, note: str, commands: Sequence[str], columns: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"title": title, "note": note, "commands": list(commands), "columns": columns, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS, help="file of the measured runs")
    parser.add_argument("--publish", action="store_true", help="write the page")
    asked = parser.parse_args()
    found = tables(runs(asked.runs))
    print(measured(found))
    if asked.publish:
        write_json(DOCS / "measured" / "partition-runs.json", found)
        replace_part(DOCS / "results" / "partition-runs.md", "measured", measured(found))


if __name__ == "__main__":
    main()
