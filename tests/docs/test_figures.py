"""Figures in README and docs/results/accuracy.md are those of the model cards and of docs/results.csv."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cdmpp.evaluation.results import read_results
from cdmpp.predict.catalogue import SHIPPED, models

REPOSITORY = Path(__file__).parents[2]
README, ACCURACY = (REPOSITORY / name for name in ("README.md", "docs/results/accuracy.md"))
NAMES_OF_ROWS = {
    "as it is": ["cdmpp"],
    "three of them, averaged": ["ensemble"],
    "without the machine code": ["no_code"],
    "without costs fitted to the machine code": ["no_code_anchor"],
    "the fitted costs alone, without a network": ["code_costs"],
    "the network predicts the latency, not a correction": ["no_anchor"],
    "trees alone, on our features": ["xgb_ours"],
    "labels by Box-Cox; by quantile": ["label_box_cox", "label_quantile"],
    "no attention; trees in its place; no quantile bins": ["no_transformer", "xgb_code_residual", "no_bins"],
}


@pytest.fixture(scope="module")
def results():
    return read_results(REPOSITORY / "docs")


def table_rows(path: Path) -> dict[str, list[str]]:
    """First cell of every table row -> the others."""
    rows = [line.strip("| \n").split(" | ") for line in path.read_text().splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def test_readme_has_the_figures_of_the_cards():
    entries = {entry.name: entry for entry in models() if entry.folder.parent == SHIPPED}
    rows = {name: entries[name.strip("`")] for name in table_rows(README) if name.strip("`") in entries}
    assert set(entries) - {"torch-gpus"} == {name.strip("`") for name in rows}
    for name, entry in rows.items():
        card = entry.summary()
        assert table_rows(README)[name] == [
            f"{card['mape']:.1f}",
            f"{card['median_ape']:.1f}",
            "-" if card["spearman_within_task"] is None else f"{card['spearman_within_task']:.3f}",
            f"{card['top1_regret']:.3f}",
        ]


def test_readme_has_the_figures_of_plans():
    tables = json.loads((REPOSITORY / "docs" / "measured" / "plans.json").read_text())
    rows = {(table["title"], *row[:2]): row for table in tables for row in table["rows"]}
    readme = " ".join(README.read_text().split())
    (off,) = re.findall(r"real gloo jobs ([\d.]+) % off without a trace, ([\d.]+) from another plan's;", readme)
    ways = ("no trace", "traces of other plans")
    assert off == tuple(rows["Real runs of plans here", way, "all"][3].split()[0] for way in ways)
    (vgg,) = (row for key, row in rows.items() if key[1] == "VGG-16" and key[2].startswith("ours"))
    counts = re.findall(r"(\d+): ", vgg[2])
    assert f"VGG-16 on {counts[0]} to {counts[-1]} V100s accuracy {vgg[3]} from its 8-GPU run." in readme


def test_ablation_table_is_that_of_the_results(results):
    mape = {r.model: r.value for r in results if (r.dataset, r.metric) == ("ablation", "mape")}
    rows = table_rows(ACCURACY)
    for name, variants in NAMES_OF_ROWS.items():
        assert rows[name] == ["; ".join(f"{mape[variant]:.1f}" for variant in variants)], name
    named = {variant for variants in NAMES_OF_ROWS.values() for variant in variants}
    others = [value for name, value in mape.items() if name not in named and "+" not in name]
    rest = next(cells[0] for name, cells in rows.items() if name.startswith("other positions"))
    assert rest == f"{min(others):.1f} to {max(others):.1f}"


def test_choices_asked_on_three_seeds_are_those_of_the_results(results):
    rows = table_rows(ACCURACY)
    names = {"with both": "cdmpp", "quantile bins": "no_bins", "attention": "no_transformer"}
    for name, model in names.items():
        values = [
            [r.value for r in results if (r.dataset, r.metric, r.model) == (dataset, "mape", model)]
            for dataset in ("bins-and-attention", "bins-and-attention-a100")
        ]
        assert [len(seeds) for seeds in values] == [3, 3]
        row = next(cells for first, cells in rows.items() if first in (name, f"without {name}"))
        assert row == [f"{np.mean(seeds):.1f}" for seeds in values]


def test_table_of_new_devices_is_that_of_the_results(results):
    rows = table_rows(ACCURACY)
    told = {name.split("`")[1]: cells for name, cells in rows.items() if name.endswith(("generation", "set-up"))}
    assert len(told) == 3
    samplers = ("random", "kmeans_most", "diverse", "kmeans")
    for device, cells in told.items():
        here = [r for r in results if (r.dataset, r.metric) == (f"few-labels-{device}", "mape")]
        means = [np.mean([r.value for r in here if (r.split, r.model) == ("30_tasks", name)]) for name in samplers]
        zero = np.mean([r.value for r in here if r.split == "0_tasks"])
        assert cells == [str(len({r.seed for r in here})), *(f"{value:.1f}" for value in (zero, *means))]
