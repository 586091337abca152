"""Tables on a terminal of 80 columns: device names stay whole, so that rows can be told apart."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.publish.curve_report import ZERO_SHOT, curve_table
from cdmpp.evaluation.metric_table import metric_table

NAMES = ("xeon-icelake", "xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids")
METRICS = {
    "mape": 123.4, "median_ape": 12.1, "p90_ape": 133.3, "within_20": 33.2, "spearman_within_task": 0.91,
    "top1_regret": 1.02, "bias_at_best": -12.3,
}  # fmt: skip
ROWS = {name: METRICS for name in NAMES}


def printed(table, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize("table", [metric_table("zero-shot", ROWS, "")])
def test_device_names_are_never_cut(table):
    text = printed(table)
    first = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert first == list(NAMES) and "…" not in text
    assert "123.4" in text and max(map(len, text.splitlines())) <= 80
    assert "…" not in printed(table, 60)


def test_samplers_are_never_cut():
    budgets = [(ZERO_SHOT, 0), *((name, 5) for name in ("random", "kmeans", "kmeans_most", "diverse"))]
    cells = [{"sampler": name, "budget": budget, "metrics": {"mape": 20.0}} for name, budget in budgets]
    text = printed(curve_table(cells, "x"), 50)
    assert "…" not in text and "20.0" in text
