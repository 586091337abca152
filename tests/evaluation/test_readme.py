from __future__ import annotations

import json

import pytest

from cdmpp.errors import DataError
from cdmpp.evaluation.readme import BEGIN, END, figures, fill


def row(model: str, metric: str, value: float, seed: int = 0) -> dict:
    return {
        "device": "a100", "dataset": "d", "split": "by_task", "seed": seed, "model": model, "metric": metric,
        "value": value, "n_programs": 1200, "n_tasks": 7,
    }  # fmt: skip


def test_means_over_seeds_best_first(tmp_path):
    rows = [row("constant", "mape", 80.0), row("cdmpp", "mape", 10.0), row("cdmpp", "mape", 20.0, seed=1)]
    text = figures(rows)
    assert text.index("| cdmpp | 15.0 |") < text.index("| constant | 80.0 |")
    assert "1,200 test programs of 7 tasks" in text and "seed 0, 1" in text
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "results.json").write_text(json.dumps(rows))
    fill(readme, tmp_path / "results.json")
    fill(readme, tmp_path / "results.json")
    assert readme.read_text().count("| cdmpp |") == 1
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("\nafter\n")
    assert "old" not in readme.read_text()


def test_nothing_to_show_is_an_error():
    with pytest.raises(DataError, match="evaluate"):
        figures([])
