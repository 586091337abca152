"""Tables on a terminal of 80 columns: names of samplers stay whole, so that rows can be told apart."""

from __future__ import annotations

from rich.console import Console

from benchmarks.publish.curve_report import ZERO_SHOT, curve_table


def printed(table, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_samplers_are_never_cut():
    budgets = [(ZERO_SHOT, 0), *((name, 5) for name in ("random", "kmeans", "kmeans_most", "diverse"))]
    cells = [{"sampler": name, "budget": budget, "metrics": {"mape": 20.0}} for name, budget in budgets]
    text = printed(curve_table(cells, "x"), 50)
    assert "…" not in text and "20.0" in text
