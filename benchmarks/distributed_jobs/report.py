"""What the rows say, as text for the documentation."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from benchmarks.distributed_jobs.score import Figure, Measured, bucket_orders, scores
from benchmarks.publish.markdown import replace_part, table

_SAID = {
    "predicted_s": "ours",
    "anchored_s": "ours, as a ratio to the measured step of the traced job",
    "no_overlap_s": "no overlap",
    "full_overlap_s": "full overlap",
    "permuted": "ours, measured steps exchanged",
}
MARK = "jobs"
PAGE = Path(__file__).parents[2] / "docs" / "results" / "training-jobs.md"
TABLE = PAGE.parents[1] / "training-jobs.csv"


def write_table(found: Sequence[Figure], path: Path) -> None:
    """One row a prediction, seconds."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([field.name for field in fields(Figure)])
        for one in found:
            rows.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in asdict(one).values()])


def read_table(path: Path) -> list[Figure]:
    """What ``write_table`` wrote."""
    with path.open(newline="") as file:
        return [
            Figure(row["kind"], row["scenario"], row["traced"], *(float(row[f.name]) for f in fields(Figure)[3:]))
            for row in csv.DictReader(file)
        ]


def markdown(found: Sequence[Figure]) -> str:
    """Errors by group, the order of bucket sizes, and each job."""
    rows = [
        [one.group, _SAID[one.column], str(one.count), f"{100 * one.median:.1f}", f"{100 * one.p90:.1f}"]
        for one in scores(found)
    ]
    lines = table(["what", "by", "jobs", "median error, %", "p90, %"], rows)
    orders = bucket_orders(found)
    if orders:
        clear, right = (sum(row[n] for row in orders) for n in (1, 2))
        lines += [
            "",
            f"Pairs of bucket sizes whose steps differ by 3 % or more: {right} of {clear} in the right order.",
        ]
    jobs = [one for one in found if one.kind == "replay"]
    body = [
        [f"`{one.scenario}`", *(f"{1e3 * s:.0f}" for s in (one.measured_s, one.traced_s, one.predicted_s)),
         f"{100 * (one.predicted_s / one.measured_s - 1):+.1f}"]
        for one in jobs
    ]  # fmt: skip
    lines += ["", *table(["job", "unprofiled, ms", "traced, ms", "replayed, ms", "off, %"], body)]
    return "\n".join(lines)


def overhead(measured: Sequence[Measured]) -> str:
    """What profiling cost inside its window and outside."""
    inside = [one.job.measured_s / one.seconds - 1 for one in measured]
    outside = [one.after / one.before - 1 for one in measured]
    low, high = np.percentile(outside, (10, 90))
    return (
        f"profiling: {np.median(inside):+.1%} in its window; steps after it against those before: "
        f"{np.median(outside):+.1%} (80 % of jobs within {low:+.1%} and {high:+.1%})"
    )


def publish(found: Sequence[Figure]) -> None:
    """The table, and what follows from it into docs/results/training-jobs.md, between its marks."""
    write_table(found, TABLE)
    replace_part(PAGE, MARK, markdown(read_table(TABLE)))
