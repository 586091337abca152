"""A target counts as reached only by the right rows, over all their seeds."""

from __future__ import annotations

import pytest

from benchmarks.publish.goals import Goal, goal_section, goals
from cdmpp.training.metrics import METRICS


def row(value, seed=0, model="cdmpp", metric="mape", dataset="a100", split="by_task"):
    return {"dataset": dataset, "split": split, "seed": seed, "model": model, "metric": metric, "value": value}


def test_means_over_seeds_and_ratios_of_the_same_seed():
    rows = [row(10.0), row(20.0, 1), row(99.0, split="random"), row(40.0, 0, "xgb"), row(50.0, 2, "xgb")]
    assert Goal("", "mape", 15, "a100", "by_task").measured(rows) == (15.0, 2)
    assert Goal("", "mape", 0.4, "a100", "by_task", over="xgb").measured(rows) == (0.25, 1)
    elsewhere = [*rows, row(80.0, 0, "xgb", dataset="a100-trees")]
    assert Goal("", "mape", 0.4, "a100", "by_task", over="xgb", over_dataset="a100-trees").measured(elsewhere) == (
        0.125,
        1,
    )
    assert Goal("", "median_ape", 10, "a100", "by_task").measured(rows) is None


@pytest.mark.parametrize(("value", "verdict"), [(15.0, "reached"), (15.2, "missed")])
def test_the_table_says_what_was_reached(value, verdict):
    lines = [line for line in goal_section([row(value)]).splitlines() if "A100, unknown tasks" in line]
    assert len(lines) == 1 and lines[0].endswith(f"| {value:.3g} | 1 | {verdict} |")


def test_a_bias_below_zero_is_no_target_reached():
    split = "by_network_googlenet_to_resnet34"
    text = goal_section([row(-9.0, metric="bias_at_best", split=split)])
    assert "| -9 | 1 | missed |" in text and text.count("not measured yet") == len(goals()) - 1


def test_every_goal_is_of_a_metric_and_split_that_exist():
    from benchmarks.publish.curve_report import curve_name
    from cdmpp.data.splits import split_names
    from cdmpp.training.sampling import SAMPLERS

    for goal in goals():
        assert goal.metric in METRICS
        if goal.dataset.startswith(curve_name("")):  # rows of a curve: a budget stands for the split
            assert goal.split.removesuffix("_tasks").isdigit() and goal.model in SAMPLERS
        else:
            assert goal.split.startswith(split_names())  # rows of older runs carry longer names of their own
