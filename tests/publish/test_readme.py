"""The tables of docs/results/accuracy.md follow from the figures, and nothing else of the page changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.publish.readme import figures
from cdmpp.errors import DataError
from cdmpp.evaluation.results import Result, Run, read_results

DOCS = Path(__file__).parents[2] / "docs"


def row(model: str, metric: str, value: float, seed: int = 0) -> Result:
    return Result("a100", "a100", "by_task", seed, model, metric, value, Run("", "", "", 1200, 7))


def test_means_over_seeds_best_first():
    rows = [row("constant", "mape", 80.0), row("cdmpp", "mape", 10.0), row("cdmpp", "mape", 20.0, seed=1)]
    rows += [row(r.model, "median_ape", 5.0, r.seed) for r in rows]
    text = figures(rows)
    assert "| data | split | cdmpp | constant |" in text
    assert "| `a100` | `by_task` | 15.0 / 5.0 | 80.0 / 5.0 (1) |" in text
    assert "over 2 seeds" in text


def test_a_split_that_a_model_was_not_run_on_stays_open():
    rows = [row(m, key, 1.0) for m in ("cdmpp", "constant") for key in ("mape", "median_ape")]
    rows += [replace(r, split="random") for r in rows if r.model == "cdmpp"]
    assert "| `a100` | `random` | 1.0 / 1.0 (1) | - |" in figures(rows)


def test_experiments_stay_out():
    rows = [row("cdmpp", key, 1.0) for key in ("mape", "median_ape")]
    others = [replace(r, dataset="few-labels-a100", model="kmeans") for r in rows]
    others += [replace(r, split=split) for r in rows for split in ("by_task_half_tasks", "by_task+train_tasks:0.5")]
    others += [replace(r, dataset="torch-gpus", device="h100+t4", model="library") for r in rows]
    assert figures(rows + others) == figures(rows)
    joint = [replace(r, dataset="cpus", device="a100+b") for r in rows]
    assert "| `cpus` | `by_task` |" in figures(rows + joint)


def test_nothing_to_show_is_an_error():
    with pytest.raises(DataError, match="evaluate"):
        figures([])


def test_our_own_page_shows_our_own_figures():
    assert figures(read_results(DOCS)) in (DOCS / "results" / "accuracy.md").read_text()
