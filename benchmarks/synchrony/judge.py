"""Judge the replay of jobs of workers and servers on those that were measured here.

python -m benchmarks.synchrony.judge [--runs FILE] [--publish]

    --runs FILE   what benchmarks.synchrony.measure wrote (default docs/measured/runs/synchrony.json)
    --publish     write docs/measured/synchrony.json and its page
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.publish.measured import change, measured
from benchmarks.synchrony import judge_bounds, judge_grid, judge_loss, judge_noise, judge_policies
from benchmarks.synchrony.measure import RUNS, runs
from benchmarks.synchrony.predict_runs import fit

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [
    *(f"python -m benchmarks.synchrony.measure {part}" for part in ("alone", "grid", "again", "policies")),
    "python -m benchmarks.synchrony.judge --publish",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS, help="file of the measured runs")
    parser.add_argument("--publish", action="store_true", help="write the page")
    asked = parser.parse_args()
    found = runs(asked.runs)
    constants = fit(found)
    judged = judge_grid.judged(found, constants)
    tables = judge_grid.tables(found, constants, judged, COMMANDS)
    if any(name.startswith("policies/") for name in found):
        tables += [judge_policies.policy_table(found, constants, COMMANDS), *judge_loss.loss_tables(found, constants)]
    tables += judge_bounds.tables(found, constants, judged, judge_grid.ALONE)
    tables += judge_noise.tables(found, COMMANDS)
    print(measured(tables))
    if asked.publish:
        change("synchrony", lambda _: tables)


if __name__ == "__main__":
    main()
