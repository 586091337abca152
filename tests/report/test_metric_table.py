"""Figures of several models: device names stay whole on narrow terminals, so that rows can be told apart."""

from __future__ import annotations

from cdmpp.report.metric_table import metric_table
from cdmpp.report.report import Report
from cdmpp.report.text import text_of

NAMES = ("xeon-icelake", "xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids")
METRICS = {
    "mape": 123.4, "median_ape": 12.1, "p90_ape": float("nan"), "within_20": 33.2, "spearman_within_task": 0.91,
    "top1_regret": 1.02, "bias_at_best": -12.3,
}  # fmt: skip
REPORT = Report("devices", tables=(metric_table("zero-shot", dict.fromkeys(NAMES, METRICS), NAMES[1]),))


def test_device_names_are_never_cut():
    text = text_of(REPORT, width=80)
    first = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert first == list(NAMES) and "…" not in text
    assert "123.4" in text and "0.910" in text and "1.020" in text and max(map(len, text.splitlines())) <= 80
    assert "…" not in text_of(REPORT, width=60)


def test_what_is_not_known_is_a_dash_and_one_row_stands_out():
    (table,) = REPORT.tables
    assert table.strong == 1 and {table.columns[3].cell(row) for row in table.rows} == {"-"}
