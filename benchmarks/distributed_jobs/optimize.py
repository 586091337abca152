"""Search plans for real jobs, run them, and set the gain beside the one that was predicted.

python -m benchmarks.distributed_jobs.optimize --out FOLDER [--only TEXT] [--visits N] [--publish]

A job is run by PyTorch's default and traced; a plan is searched in that trace; default and plan then run in turn.
A job is one line of FOLDER/plans.jsonl. Needs root, `ip`, `tc`.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.distributed_jobs.measure import measure
from benchmarks.distributed_jobs.report import PAGE
from benchmarks.distributed_jobs.scenario import Scenario
from benchmarks.publish.markdown import replace_part, table
from cdmpp.plans import plan_on
from cdmpp.plans.traced_step import optimize_traced
from cdmpp.synchrony.processes.namespaces import why_not
from cdmpp.trace.graph_file import graph_from_dict

DEFAULT = json.dumps(plan_on(2).to_dict())
JOBS = {
    f"{network}-{mbit}Mbit": Scenario(network, "ddp", mbit, plan=DEFAULT)
    for network, mbit in (("mlp", 400), ("mlp", 1600), ("gpt", 400), ("cnn", 100))
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of plans.jsonl; made where it is not")
    parser.add_argument("--only", default="", help=f"jobs with this text in their name: {', '.join(JOBS)}")
    parser.add_argument("--visits", type=int, default=2, help="how often default and plan run in turn (default 2)")
    parser.add_argument("--steps", type=int, default=20, help="steps without the profiler, a visit (default 20)")
    parser.add_argument(
        "--accumulate-steps", type=int, default=1, help="batches whose gradients may be added up (default 1)"
    )
    parser.add_argument("--publish", action="store_true", help=f"write the table into {PAGE.name}")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    if reason := why_not():
        print(f"cannot measure here: {reason}", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, scenario in JOBS.items():
        if asked.only in name:
            rows.append(tried(name, scenario, asked.visits, asked.steps, asked.accumulate_steps))
            print(told(rows[-1]), flush=True)
            with (asked.out / "plans.jsonl").open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(markdown(rows))
    if asked.publish:
        replace_part(PAGE, "plans", markdown(rows))
    return 0


def tried(name: str, scenario: Scenario, visits: int, steps: int, most_accumulation_steps: int = 1) -> dict[str, Any]:
    """One job: its plan, and the seconds of a batch by default and under the plan, a visit each.

    Raises:
        RuntimeError: a rank that failed.
    """
    first = measure(scenario, steps)
    found = optimize_traced(graph_from_dict(first["job"]), most_accumulation_steps, "sgd")
    planned = replace(scenario, plan=json.dumps(found.plan.to_dict()))
    seconds: dict[str, list[float]] = {"default": [first["unprofiled_s"]], "plan": []}
    references = [*first["reference_s"]]
    for visit in range(visits):
        for which, one in (("default", scenario), ("plan", planned)):
            if which == "default" and not visit:
                continue  # it was traced
            row = measure(one, steps)
            batches = found.plan.gradient_accumulation_steps if which == "plan" else 1
            seconds[which].append(row["unprofiled_s"] / batches)
            references += row["reference_s"]
    measured = {which: statistics.median(values) for which, values in seconds.items()}
    worst = [max(pair) for pair in references]
    return {
        "name": name,
        "predicted_gain": found.gain,
        "measured_gain": measured["default"] / measured["plan"] - 1,
        "seconds": seconds,
        "drift": max(worst) / min(min(pair) for pair in references) - 1,
        "search": found.to_dict(),
    }


def told(row: dict[str, Any]) -> str:
    """A line."""
    changes = ", ".join(row["search"]["changes"]) or "the default"
    return (
        f"{row['name']}: {changes}; gain {row['predicted_gain']:+.1%} predicted, {row['measured_gain']:+.1%} measured; "
        f"the reference kernel moved by {row['drift']:.0%}"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """A row a job."""
    body = [
        [f"`{row['name']}`", ", ".join(row["search"]["changes"]) or "the default",
         *(f"{1e3 * statistics.median(row['seconds'][which]):.0f}" for which in ("default", "plan")),
         *(f"{100 * row[f'{kind}_gain']:+.1f}" for kind in ("predicted", "measured"))]
        for row in rows
    ]  # fmt: skip
    heads = ["job", "plan", "default, ms", "plan, ms", "predicted gain, %", "measured gain, %"]
    return "\n".join(table(heads, body))


if __name__ == "__main__":
    sys.exit(main())
