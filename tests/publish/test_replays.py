"""Replayed searches: what they measure, what they are judged by, and the page that is made of them."""

import json

import numpy as np
import pytest

from benchmarks.publish import replays
from benchmarks.replay import BATCH, Chance, Ours, Trees, replay


@pytest.fixture
def programs():
    """Two tasks of 300 programs whose latency follows a feature that the trained model does not know."""
    random = np.random.default_rng(0)
    features = random.normal(size=(600, 6))
    log_s = -10.0 + np.repeat([0.0, 2.0], 300) + 0.5 * features[:, 0]
    tasks = {"a": np.arange(300), "b": np.arange(300, 600)}
    return features, log_s, tasks


def test_a_model_that_knows_all_finds_the_best_at_once(programs):
    features, log_s, tasks = programs
    lines = replay(Ours(log_s, features, log_s, frozen=True), tasks, np.exp(log_s), {"a": 1.0, "b": 3.0})
    assert [line["trials"] for line in lines] == [1, 8, 64, 128, 192, 256]
    assert all(line["regret"] == line["weighted_regret"] == 1.0 for line in lines)
    assert lines[0]["bias_at_best"] == pytest.approx(0.0)
    assert "bias_at_best" not in lines[1]


def test_learning_finds_what_a_frozen_model_misses(programs):
    features, log_s, tasks = programs
    blind = np.repeat([-10.0, -8.0], 300)
    kept, learned = (
        replay(Ours(blind, features, log_s, frozen), tasks, np.exp(log_s), {"a": 1.0, "b": 1.0})
        for frozen in (True, False)
    )
    assert kept[0]["regret"] > 1.5 and kept[0]["bias_at_best"] == learned[0]["bias_at_best"] > 1.0
    assert learned[3]["regret"] < kept[3]["regret"] and learned[3]["regret"] < 1.02
    assert abs(learned[3]["bias_at_best"]) < 0.5 * abs(learned[0]["bias_at_best"])


def test_the_bias_is_that_of_a_model_that_did_not_see_the_best(programs):
    features, log_s, _ = programs
    player = Ours(np.full(600, -10.0), features, log_s)
    player.learn("a", np.arange(BATCH))
    rest = player.without(5)
    assert len(rest.learner) == BATCH - 1 and len(player.learner) == BATCH
    fresh = Ours(np.full(600, -10.0), features, log_s)
    fresh.learn("a", np.array([row for row in range(BATCH) if row != 5]))
    row = np.array([5])
    assert rest.behind("a", row) == pytest.approx(fresh.behind("a", row))
    assert rest.behind("a", row) != pytest.approx(player.behind("a", row))


def test_nothing_is_measured_twice(programs):
    _, log_s, tasks = programs
    seen = []

    class Noted(Chance):
        def learn(self, task, rows):
            seen.extend(rows.tolist())

    replay(Noted(np.random.default_rng(0)), tasks, np.exp(log_s), {"a": 1.0, "b": 1.0})
    assert len(seen) == len(set(seen)) == 512


def test_trees_are_those_of_metaschedule(programs):
    pytest.importorskip("tvm")
    pytest.importorskip("xgboost")
    from tvm.script import ir as I
    from tvm.script import tirx as T

    @I.ir_module
    class Module:
        @T.prim_func
        def main(a: T.Buffer((4,), "float32")):  # noqa: N805
            for i in range(4):
                a[i] = T.float32(1)

    features, log_s, tasks = programs
    wide = np.zeros((600, 164), np.float32)
    wide[:, :6] = features
    tasks = {"a": tasks["a"]}
    trees = Trees([row[None] for row in wide], np.exp(log_s), {"a": Module}, 0)
    first = trees.behind("a", np.arange(300))
    for start in (0, BATCH):
        trees.learn("a", np.arange(start, start + BATCH))
    assert (
        np.corrcoef(trees.behind("a", np.arange(300)), log_s[:300])[0, 1] > 0.8 > np.corrcoef(first, log_s[:300])[0, 1]
    )


def test_rows_become_a_table_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    docs, out = tmp_path / "docs", tmp_path / "out"
    (docs / "results").mkdir(parents=True), out.mkdir()
    (docs / "results" / "searches.md").write_text("<!-- replays -->\n<!-- /replays -->\n")
    for seed in (0, 1):
        lines = [
            {"trials": 1, "weighted_regret": 1.2 + 0.1 * seed, "regret": 1.1, "bias_at_best": 0.1},
            {"trials": 64, "weighted_regret": 1.0, "regret": 1.0},
        ]
        cell = {"device": "d", "network": "n", "model": "online", "seed": seed, "tasks": 2, "programs": 9}
        (out / f"{seed}.json").write_text(json.dumps(cell | {"lines": lines}))
    for _ in range(2):
        replays.main(str(out), str(docs))
    assert "| `d` | n | online | 2 | 1.250 | 1.000 | +10.0 |" in (docs / "results" / "searches.md").read_text()
    assert len((docs / "replays.csv").read_text().splitlines()) == 5
    assert (docs / "images" / "replay-d.png").is_file()
