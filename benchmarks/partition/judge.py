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

from benchmarks.partition import calibration
from benchmarks.partition.engine import engine_of, spinning
from benchmarks.partition.layer_profile import chain_of
from benchmarks.partition.measure import METHODS, RUNS, SAME, runs
from benchmarks.partition.tasks import HELD_OUT, LONGER, ROUNDS, TIMED_STEPS, TRAININGS
from benchmarks.publish.measured import change, measured
from cdmpp.partition.outcome import replayed
from cdmpp.plans.schedules import SCHEDULES

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [
    *(f"python -m benchmarks.partition.measure {part}" for part in ("seconds", "accuracy")),
    "python -m benchmarks.partition.judge --publish",
]
ONE = "one device"
CPU = "AMD EPYC, Zen 4, 2 cores of a virtual machine, Linux 6.18"
"""Where the runs were measured."""
Run = Mapping[str, Any]
Runs = Mapping[str, Run]


def groups(found: Runs, kind: str) -> Iterator[tuple[str, str, list[Run]]]:
    """Network, method, its runs by seed; ``kind``: ``seconds`` or ``accuracy``."""
    for network in (*TRAININGS, *LONGER):
        for method in METHODS:
            name = f"{kind}/{network}/{method}/"
            own = [run for key, run in found.items() if key.startswith(name) and "failed" not in run]
            if own:
                yield network, method, sorted(own, key=lambda run: run["seed"])


def predicted(found: Runs, network: str, method: str, cuts: Sequence[int], number: int) -> tuple[float, list[float]]:
    """Seconds of a step, and bytes of the stash of each stage, by the planner's replay of the layers of a round.

    Layers of a run that has both cores were measured while both ran them.
    """
    schedule, stages, micro_batches = METHODS[method]
    who = "both" if stages > 1 or SCHEDULES[schedule].passes_side_by_side else "one"
    parts = found[f"layers/{network}/{who}/{number}"]["parts"]
    data_s = parts["1"]["data_s"]
    chain = chain_of(parts[str(micro_batches)], cuts, schedule, micro_batches, engine_of(found), data_s)
    return replayed(chain).step_s, [cost.stash_bytes for cost in chain.costs]


def off(guess: float, was: float) -> float:
    return 100 * (guess / was - 1)


def speed_rows(found: Runs) -> list[list[str]]:
    rows, step_s = [], {(network, name, run["seed"]): run["step_s"] for network, name, own in groups(found, "seconds")
                        for run in own}  # fmt: skip
    for network, method, own in groups(found, "seconds"):
        own = [run for run in own if (network, ONE, run["seed"]) in step_s]
        mean_s = float(np.mean([run["step_s"] for run in own]))
        gains = [step_s[network, ONE, run["seed"]] / run["step_s"] for run in own]
        row = [network, method, str(len(own)), f"{1e3 * mean_s:.1f}"]
        row += [f"{np.mean(gains):.2f}", f"{min(gains):.2f} to {max(gains):.2f}"]
        for other in ("data parallel", "1f1b"):
            over = [step_s[network, other, run["seed"]] / run["step_s"] for run in own]
            row.append(f"{np.mean(over):.2f}")
        if METHODS[method][0]:
            guess = float(np.mean([predicted(found, network, method, run["cuts"], run["seed"])[0] for run in own]))
            row += [f"{1e3 * guess:.1f}", f"{off(guess, mean_s):+.1f}"]
        rows.append(row + ["–"] * (10 - len(row)))
    return rows


def engine_rows(found: Runs) -> list[list[str]]:
    """Predict the runs of spinning layers."""
    rows, engine = [], engine_of(found)
    for name, (schedule, stages, micro_batches) in calibration.RUNS.items():
        for run in (one for key, one in found.items() if key.startswith(f"engine/{name}/")):
            chain = chain_of(spinning(run), range(1, stages), schedule, micro_batches, engine)
            guess = replayed(chain).step_s
            size = f"{run['bytes'] // 1024}" if stages > 1 else "–"
            rows.append([name, schedule, str(stages), str(micro_batches), size, f"{1e3 * run['step_s']:.2f}",
                         f"{1e3 * guess:.2f}", f"{off(guess, run['step_s']):+.1f}"])  # fmt: skip
    return rows


def accuracy_rows(found: Runs) -> list[list[str]]:
    ends = {(network, method, run["seed"]): run["held_out"][-1] for network, method, own in groups(found, "accuracy")
            for run in own}  # fmt: skip
    rows = []
    for network, method, own in groups(found, "accuracy"):
        last = [ends[network, method, run["seed"]] for run in own]
        pairs = [(100 * ends[network, method, run["seed"]][2], 100 * ends[network, ONE, run["seed"]][2])
                 for run in own if (network, ONE, run["seed"]) in ends]  # fmt: skip
        gaps = [own_score - one for own_score, one in pairs]
        stale = max(own[0].get("staleness", [0]))
        scores = [one for one, _ in pairs]
        rows.append(
            [network, method, str(len(own)), f"{last[0][0]:,}", str(stale), f"{np.mean(scores):.1f}",
             f"{min(scores):.1f} to {max(scores):.1f}", f"{np.mean(gaps):+.1f}", f"{min(gaps):+.1f}",
             f"{np.mean([one[1] for one in last]):.3f}"]
        )  # fmt: skip
    return rows


def stash_rows(found: Runs) -> list[list[str]]:
    rows = []
    for network, method, own in groups(found, "seconds"):
        if not METHODS[method][0]:
            continue
        run = own[0]
        guesses = predicted(found, network, method, run["cuts"], run["seed"])[1]
        for stage, (guess, was) in enumerate(zip(guesses, run["stash_bytes"], strict=True)):
            rows.append(
                [network, method, str(stage), str(run["live"][stage]), f"{was / 1e6:.2f}", f"{guess / 1e6:.2f}",
                 f"{off(guess, was):+.1f}", f"{run['weight_bytes'][stage] / 1e6:.2f}"]
            )  # fmt: skip
    return rows


def part_rows(found: Runs) -> list[list[str]]:
    """Where the time of a step goes on each stage, in ms."""
    rows, kinds = [], ("forward", "backward", "update", "receive", "send", "data")
    for network, method, own in groups(found, "seconds"):
        for stage in range(len(own[0].get("seconds", ()))):
            means = [1e3 * float(np.mean([run["seconds"][stage][kind] for run in own])) for kind in kinds]
            rows.append([network, method, str(stage), *(f"{mean:.1f}" for mean in means)])
    return rows


def tables(found: Runs) -> list[dict[str, Any]]:
    sizes = "; ".join(
        f"{name}: {one.examples} examples a step, {one.optimizer.keywords['lr']:g} learning rate"  # type: ignore[attr-defined]
        for name, one in TRAININGS.items()
    )
    engine = engine_of(found)
    note = (
        f"{CPU}; one thread and one core a process, gloo over the loopback; nothing else ran. "
        f"{len(ROUNDS)} rounds, each with its seed: layers by themselves, then {TIMED_STEPS} steps of each method; a "
        "step is the mean of the last three quarters of a run. Networks: a CNN on the digits of scikit-learn, a "
        f"transformer on the letters of this project's licence ({sizes}). Cut where the planner's costs say, from "
        "layers measured on one core. Data parallel: DistributedDataParallel, half of each batch on each core. gpipe, "
        "1f1b, 2bw: four micro-batches a step. pipedream and delayed: the batch of a step is one micro-batch. Side by "
        "side: one stage, one thread for forward and one for backward passes, both cores. Predicted: the replay with "
        "the layers of the same round, measured while the other core runs them too where both cores train, and with "
        "what the engine adds (below). No constant is fitted to a run of this table."
    )
    failed = [f"{name} ({run['failed'].splitlines()[-1]})" for name, run in found.items() if "failed" in run]
    note += f" Runs that failed: {'; '.join(failed) or 'none'}."
    host = engine.host
    adds = (
        f"Layers that only let {1e3 * calibration.FORWARD_S:g} ms pass in a forward pass and "
        f"{1e3 * calibration.BACKWARD_S:g} ms in a backward pass, {calibration.STEPS} steps: what a step takes beyond "
        f"them. Found: {1e6 * host.pass_s:.0f} us a pass, {1e6 * host.update_s:.0f} us an update, "
        f"{1e6 * host.send_s:.0f} us behind a message that is sent, {1e6 * host.receive_s:.0f} us before a pass that "
        f"needs one. A message is under way for {2e6 * engine.link.alpha_s:.0f} us and {1e9 * engine.link.beta_s:.2f} "
        "ns a byte. `alone`, `in turns` and `delayed` give these numbers; all other rows are a check of the replay."
    )
    return [
        _table("Seconds of a step", note, COMMANDS,
               ["network", "by", "rounds", "step, ms", "speed-up, mean", "speed-up, range", "over data parallel",
                "over 1f1b", "predicted, ms", "error %"], speed_rows(found)),
        _table("What the engine adds", adds, [],
               ["run", "schedule", "stages", "micro-batches", "message, KiB", "step, ms", "predicted, ms", "error %"],
               engine_rows(found)),
        _table("Where the time goes", "Mean ms of a step on each stage.", [],
               ["network", "by", "stage", "forward", "backward", "update", "receive", "send", "data"],
               part_rows(found)),
        _table("Accuracy after the same samples",
               f"Per cent of {HELD_OUT} held-out examples (letters: of each of their letters, of a part of the text "
               "that no training example touches), weights of the end of the run; the split and the initial weights "
               "differ by seed. Longer runs than those above, on a busy machine: no seconds of them count. All methods "
               "have one learning rate and warm-up, chosen before any held-out example was looked at: of 0.05, 0.02 "
               "and 0.01 the largest that was tried with which one device and `delayed` both train, by the training "
               f"loss of seed 100. Twice as many steps of the CNN were run after its 400 had been looked at. "
               f"{', '.join(SAME)} train as one device does, but for rounding: one seed of the CNN. "
               "Gap: points above one device of the same seed. Staleness: most updates between the weights of a "
               "gradient and its update.", [],
               ["network", "by", "seeds", "samples", "staleness", "accuracy %", "range", "gap, mean", "gap, worst",
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
        change("partition-runs", lambda _: found)


if __name__ == "__main__":
    main()
