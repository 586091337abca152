"""Finished cells become pages, pictures and two tables of figures; what others wrote stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.publish import results
from benchmarks.publish.plots import save_evaluation_plot
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.results import read_results
from cdmpp.evaluation.run import evaluate, run_cell

DOCS = Path(__file__).parents[2] / "docs"
QUICK = ["constant", "roofline"]


def test_pages_of_two_data_sets(data, tmp_path):
    docs = tmp_path / "docs"
    for name in ("a100", "xeon"):
        out = tmp_path / name
        evaluate(data, name, ["by_task"], [0, 1], QUICK, CellOptions(out, command=f"run {name}"), progress=False)
        results.publish(str(out), str(docs))
    text = (docs / "results" / "xeon.md").read_text()
    assert text.startswith("# xeon\n") and "of a100: 0.80 % mean" in text and "`run xeon`" in text
    assert "| roofline | 2 |" in text and "±" in text and "conv2d (n=" in text and "nan" not in text.lower()
    assert "![xeon-mape](../images/xeon-mape.png)" in text and (docs / "images" / "xeon-mape.png").is_file()
    index = (docs / "results" / "index.md").read_text()
    assert "[a100](a100.md)" in index and "[xeon](xeon.md)" in index and "not measured yet" in index
    assert {result.dataset for result in read_results(docs)} == {"a100", "xeon"}


def test_nothing_to_publish_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no finished cells"):
        results.publish(str(tmp_path), str(tmp_path / "docs"))


def test_our_own_pages_are_those_of_our_own_figures():
    figures = read_results(DOCS)
    assert len(figures) > 4000 and len({result.run for result in figures}) < 200
    index = (DOCS / "results" / "index.md").read_text()
    assert index == "\n".join(results.index_page(figures)).rstrip("\n") + "\n"
    pages = {path.stem for path in (DOCS / "results").glob("*.md")} - {"index"}
    assert pages == {result.dataset for result in figures} | set(results.OTHER_PAGES)


def test_model_bars(tmp_path):
    cells = [{"split": s, "model": m, "metrics": {"mape": 10.0}} for s in ("random", "by_task") for m in "ab"]
    assert save_evaluation_plot(tmp_path / "m.png", cells).is_file()


def test_tables_show_intervals_and_read_cells_from_before_them(data, tmp_path):
    cell = run_cell(data, "x", Cell("by_task", 0, "constant"), CellOptions(tmp_path))
    old = {key: value for key, value in cell.items() if key != "intervals"}
    figures = {"coverage": 81.5, "task_coverage": 80.25, "width": 3.5}
    new = {**json.loads(json.dumps(cell)), "model": "new", "intervals": {"0.8": figures}}
    newer = {**new, "seed": 1, "intervals": {"0.8": {**figures, "coverage": 82.5}}}
    table = (
        "\n".join(results.data_set_page("x", [old, new, newer]))
        .split("Prediction intervals:")[1]
        .split("MAPE % by op class")[0]
    )
    assert "| model | seeds | 80 % holds % | 80 % by task % | 80 % width |" in table
    assert "| new | 2 | 82.0 ± 0.7 |" in table and "constant" not in table
    assert "Prediction intervals:" not in results.data_set_page("x", [old])
