"""Steps of the measured jobs without any trace of them: predicted operators, and collectives that were timed alone.

python -m benchmarks.distributed_jobs.untraced --out FOLDER --device D --model M [--drift 0.1] [--publish]

FOLDER is that of ``benchmarks.distributed_jobs``; M is a model of library operators that knows D, the machine of the
jobs. Jobs whose ranks share a core, or whose collectives were not timed, are left out.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.distributed_jobs.networks import make
from benchmarks.distributed_jobs.rank import loss_of
from benchmarks.distributed_jobs.report import PAGE
from benchmarks.distributed_jobs.score import DRIFT, Measured, read_rows, usable
from benchmarks.publish.markdown import replace_part, table
from cdmpp import Workload, predict_step
from cdmpp.errors import CdmppError
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.probed_topology import probed_topology
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.scale import scale_ranks

MARK = "untraced"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--device", required=True, help="what the machine of the jobs is")
    parser.add_argument("--model", required=True, help="folder or name of a model of library operators")
    parser.add_argument("--drift", type=float, default=DRIFT, help="as of benchmarks.distributed_jobs")
    parser.add_argument("--publish", action="store_true", help=f"write the table of {PAGE.name}")
    asked = parser.parse_args()

    @cache
    def predicted(network: str) -> StepPrediction:
        model, batch = make(network)
        workload = Workload(model, (batch,), loss=loss_of, optimizer="sgd")
        return predict_step(workload, device=asked.device, runtime="torch", model=asked.model)

    measured, refused = usable(read_rows(asked.out), asked.drift)
    for reason in refused:
        print(f"left out: {reason}", file=sys.stderr)
    rows, errors = [], []
    for one in measured:
        scenario = one.scenario
        if len(set(scenario.pins)) < scenario.ranks or scenario.scheme == "server":
            continue
        try:
            step_s = _step_s(one, predicted(scenario.network))
        except CdmppError as error:
            print(f"left out: {scenario.name}: {error}", file=sys.stderr)
            continue
        alone_s = predicted(scenario.network).latency_s
        errors.append(step_s / one.seconds - 1)
        cells = (f"`{scenario.name}`", *(f"{1e3 * s:.0f}" for s in (one.seconds, step_s, alone_s)))
        rows.append([*cells, f"{100 * errors[-1]:+.1f}"])
    if not errors:
        print("no job could be predicted", file=sys.stderr)
        return 2
    off = 100 * np.abs(errors)
    text = [
        *table(["job", "measured, ms", "predicted, ms", "one rank alone, predicted, ms", "off, %"], rows),
        "",
        f"{len(off)} jobs: {np.mean(off):.1f} % off in the mean, {np.median(off):.1f} median, "
        f"{np.percentile(off, 90):.1f} at 90 %.",
    ]
    print("\n".join(text))
    if asked.publish:
        replace_part(PAGE, MARK, "\n".join(text))
    return 0


def _step_s(one: Measured, found: StepPrediction) -> float:
    scenario = one.scenario
    strategy = STRATEGIES[scenario.scheme]()
    if isinstance(strategy, DDP):
        strategy = DDP(bucket_bytes=(int(2**20 * scenario.bucket_mb),))
    graph = scale_ranks(graph_of(found), scenario.ranks)
    return replay_strategy(graph, strategy.on_backend("gloo"), probed_topology(one.graph)).iteration_s


if __name__ == "__main__":
    sys.exit(main())
