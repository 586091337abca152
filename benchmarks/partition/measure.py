"""Measure real runs of stages on this machine, one after another; what is there already is kept. Two cores.

python -m benchmarks.partition.measure seconds        # what the engine adds, layers by themselves, runs: on idle cores
python -m benchmarks.partition.measure accuracy       # longer runs, of which no seconds count: the machine may be busy

    --only TEXT   runs with this text in their name
    --into FILE   default docs/measured/runs/partition.json

Every run of a seed trains on the same examples in the same order, and as many of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.partition import calibration
from benchmarks.partition.layer_profile import chain_of
from benchmarks.partition.peers import data_parallel, profiled
from benchmarks.partition.tasks import LONGER, ROUNDS, SEEDS, TIMED_STEPS, TRAININGS, accuracy
from cdmpp.errors import CdmppError
from cdmpp.partition import train
from cdmpp.partition.processes.record import KINDS
from cdmpp.platform.files import read_json, write_json
from cdmpp.synchrony.processes.crew import Crew
from cdmpp.synchrony.processes.place import WorkerPlace

RUNS = Path(__file__).parents[2] / "docs" / "measured" / "runs" / "partition.json"
STAGES = 2
METHODS: dict[str, tuple[str, int, int]] = {
    "one device": ("sequential", 1, 1),
    "data parallel": ("", 2, 1),
    "gpipe": ("gpipe", 2, 4),
    "1f1b": ("1f1b", 2, 4),
    "2bw": ("2bw", 2, 4),
    "pipedream": ("pipedream", 2, 1),
    "delayed": ("delayed", 2, 1),
    "side-by-side": ("side-by-side", 1, 1),
}
"""Schedule, stages and micro-batches of a step. Side by side one stage has both cores."""
SAME = ("data parallel", "gpipe", "1f1b")
"""Methods that train as one device does, but for rounding, which tests hold them to: one seed of the CNN shows it."""
PARTS = (1, 4)
"""Micro-batches of a step for which layers are measured."""
POINTS = 4
"""Points of the held-out accuracy after the first one."""
Measured = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def runs(path: Path = RUNS) -> dict[str, dict[str, Any]]:
    """What was measured, by name."""
    return read_json(path) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("seconds", "accuracy"))
    parser.add_argument("--only", default="", help="runs with this text in their name")
    parser.add_argument("--into", type=Path, default=RUNS, help="file of the runs")
    asked = parser.parse_args()
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    found = runs(asked.into)
    for name, measure in _seconds(found) if asked.part == "seconds" else _accuracy(found):
        if asked.only in name and name not in found:
            begin_s = time.perf_counter()
            try:
                found[name] = measure()
            except CdmppError as error:  # such as a loss that is not finite: that, too, is a result
                found[name] = {"failed": str(error)}
                print(f"{name}: {error}", flush=True)
            write_json(asked.into, found)
            print(f"{name}: {time.perf_counter() - begin_s:.1f} s, step {found[name].get('step_s')}", flush=True)
    return 0


def together(target: Callable[..., None], count: int, *given: Any) -> list[dict[str, Any]]:
    """What processes say that run a function at the same time, each on its core."""
    with ExitStack() as stack:
        meeting = stack.enter_context(tempfile.TemporaryDirectory())
        crew = Crew("main", [target.__module__])
        stack.callback(crew.kill)
        pipes = [crew.start(target, number, count, f"{meeting}/store", *given) for number in range(count)]
        return [crew.told(pipe, f"process {number}") for number, pipe in enumerate(pipes)]


def _seconds(found: dict[str, dict[str, Any]]) -> Measured:
    """What the engine adds, then round after round the layers and all runs: the speed of the cores drifts."""
    for name, (_, stages, _) in calibration.RUNS.items():
        for size in calibration.SIZES if stages > 1 else calibration.SIZES[:1]:
            yield f"engine/{name}/{size}", lambda n=name, s=size: calibration.run(n, s)
    for number in ROUNDS:
        for network in TRAININGS:
            for who, count in (("one", 1), ("both", STAGES)):
                yield (
                    f"layers/{network}/{who}/{number}",
                    lambda n=network, c=count, r=number: together(profiled, c, n, r, PARTS)[0],
                )
        for network in TRAININGS:
            for method in METHODS:
                yield (
                    f"seconds/{network}/{method}/{number}",
                    lambda n=network, m=method, r=number: _run(found, n, m, r, TIMED_STEPS, False),
                )


def _accuracy(found: dict[str, dict[str, Any]]) -> Measured:
    for network, training in TRAININGS.items():
        for seed in SEEDS:
            shows = (network, seed) == ("cnn", SEEDS[0])
            methods = [one for one in METHODS if shows or one not in SAME]
            for method in methods:
                yield (
                    f"accuracy/{network}/{method}/{seed}",
                    lambda n=network, m=method, s=seed, t=training.steps: _run(found, n, m, s, t, True),
                )
    for name, (network, steps) in LONGER.items():
        for seed in SEEDS:
            for method in (one for one in METHODS if one not in SAME):
                yield (
                    f"accuracy/{name}/{method}/{seed}",
                    lambda n=network, m=method, s=seed, t=steps: _run(found, n, m, s, t, True),
                )


def cuts_of(found: dict[str, dict[str, Any]], network: str, micro_batches: int) -> tuple[int, ...]:
    """Where the slowest of two stages is fastest, by layers of the first round."""
    measured = found[f"layers/{network}/one/{ROUNDS[0]}"]["parts"][str(micro_batches)]
    every = [(cut,) for cut in range(1, len(measured["forward_s"]))]
    return min(every, key=lambda cuts: chain_of(measured, cuts, "pipedream", 1).slowest_s)


def _run(
    found: dict[str, dict[str, Any]], network: str, method: str, seed: int, steps: int, is_judged: bool
) -> dict[str, Any]:
    """Train; ``is_judged``: with held-out examples."""
    training, (schedule, stages, micro_batches) = TRAININGS[network], METHODS[method]
    if not schedule:
        told = together(data_parallel, STAGES, network, seed, steps)[0]
        return {**told, "network": network, "method": method, "seed": seed}
    cuts = cuts_of(found, network, micro_batches) if stages > 1 else ()
    record = train(
        training.build, list(cuts), schedule, training.data_of(seed, training.examples), training.loss,
        training.optimizer, steps, micro_batches, seed, held_out=training.held_out_of(seed) if is_judged else None,
        score=accuracy, held_out_every=max(1, steps // POINTS), warm_up=training.warm_up, timeout_s=1e4,
        places=[WorkerPlace(core=None if is_judged or method == "side-by-side" else n) for n in range(stages)],
    ).record  # fmt: skip
    return {
        "network": network, "method": method, "seed": seed, "cuts": list(cuts), "step_s": record.step_s,
        "micro_batches": micro_batches, "stash_bytes": [one.stash_bytes for one in record.stages],
        "live": [one.live for one in record.stages], "staleness": [one.staleness for one in record.stages],
        "weight_bytes": [one.versions * one.parameter_bytes for one in record.stages],
        "seconds": [{kind: record.mean_s(stage, kind) for kind in KINDS} for stage in range(stages)],
        "held_out": [[one.samples, one.loss, one.score] for one in record.held_out],
        "loss": sum(one.loss for one in record.losses[-POINTS * 10 :]) / (POINTS * 10),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
