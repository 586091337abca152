"""The report on a network prediction: rows, totals, charts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdmpp.report.axis import LogAxis, linear_ticks
from cdmpp.report.html import html_page, notebook_html
from cdmpp.report.network import by_class, kernel_table, latency_parts, network_report, peaks
from cdmpp.report.text import text_of
from tests.network.example_prediction import example, kernels
from tests.report.read_page import Page


def page_of(prediction) -> str:
    return html_page([network_report(prediction)])


def headings(prediction) -> list[str]:
    return [column.name for column in kernel_table(prediction).shown_columns]


def test_rows_and_overhead_make_the_latency():
    prediction = example()
    rows = prediction.table()
    total = sum(row["total_s"] for row in rows) + prediction.overhead_s
    assert total == pytest.approx(prediction.latency_s) == pytest.approx(prediction.work_s)
    assert sum(row["share"] for row in rows) == pytest.approx(1 - prediction.overhead_s / total)
    assert [row["total_s"] for row in rows] == sorted((row["total_s"] for row in rows), reverse=True)
    assert sum(row["count"] for row in rows) == len(prediction.timeline.spans) == 62
    assert sum(by_class(prediction).values()) + prediction.overhead_s == pytest.approx(prediction.latency_s)
    assert sum(latency_parts(prediction).values()) == pytest.approx(prediction.latency_s, rel=6e-3)
    first = rows[0]
    assert first["flops_per_s"] == first["flops"] / first["latency_s"]
    assert first["total_s"] == first["count"] * (first["latency_s"] + first["cold_s"])


def test_what_runs_side_by_side_is_told():
    prediction = example(engines=("a", "b", "c"))
    assert prediction.latency_s < 0.5 * prediction.work_s
    assert latency_parts(prediction)["side by side"] < 0
    assert "side by side -" in text_of(network_report(prediction))
    assert max(row["share"] for row in prediction.table()) < 0.2
    assert prediction.to_dict()["critical_path_share"] < 0.5


def test_json_has_all_numbers_with_units():
    prediction = example(measured_s=1.7e-3)
    told = json.loads(json.dumps(network_report(prediction).answer, allow_nan=False))
    assert told["latency_s"] == prediction.latency_s and told["throughput_per_s"] == 1 / prediction.latency_s
    assert told["intervals_s"]["0.8"] == list(prediction.intervals[0.8]) and told["intervals_from"]
    assert told["resources"]["stream 0"]["busy_s"] + told["resources"]["stream 0"]["idle_s"] == pytest.approx(
        told["latency_s"]
    )
    assert told["critical_path_share"] == pytest.approx(1.0)
    assert told["peak_bytes"] == told["weight_bytes"] + told["input_bytes"] + told["activation_bytes"]
    assert told["warnings"] == list(prediction.warnings) and told["measured_s"] == 1.7e-3 and told["folded"] == 53
    kernel = next(row for row in told["kernels"] if row["op_class"] == "winograd")
    assert set(kernel["intervals_s"]) == {"0.8", "0.9"} and kernel["flags"] == ["unlike training"]
    assert kernel["interval_low_s"] == kernel["intervals_s"]["0.8"][0]


def test_numbers_that_are_none_are_null_in_json():
    odd = replace(kernels()[0], flops=float("inf"))
    assert example([odd]).to_dict()["kernels"][0]["flops"] is None


def test_without_intervals_none_are_shown():
    prediction = example(intervals=False)
    assert not any("low" in name for name in headings(prediction))
    assert "%:" not in text_of(network_report(prediction)).split("Kernels, most")[0]
    assert "Interval: none: " in page_of(prediction)
    assert prediction.to_dict()["intervals_s"] == {}


def test_another_level_is_shown_by_its_name():
    used = [replace(kernel, intervals={0.5: (0.9 * kernel.latency_s, 1.1 * kernel.latency_s)}) for kernel in kernels()]
    assert "50 % low" in page_of(example(used, intervals=False))


def test_an_empty_network_is_no_error():
    prediction = example([])
    assert prediction.table() == [] and prediction.to_dict()["throughput_per_s"] is None
    Page(page_of(prediction))
    Page(notebook_html(network_report(prediction)).html)
    assert "latency    0 s" in text_of(network_report(prediction))


def test_a_kernel_that_takes_no_time_is_no_error():
    free = replace(kernels()[0], latency_s=0.0, cold_s=0.0, io_bytes=0.0, intervals={}, measured_s=None)
    Page(page_of(example([free])))
    assert example([free]).table()[0]["flops_per_s"] is None


def test_the_page_has_all_sections():
    prediction = example(measured_s=1.7e-3)
    read = Page(page_of(prediction))
    titles = ("Timeline", "Time by part", "Time by op class", "The 12 kernels with most time", "Roofline",
              "Predicted and measured", "Kernels, most time first", "How to read this")  # fmt: skip
    assert all(title in read.text for title in titles)
    assert "fp32 peak 19.5 TFLOP/s" in read.text and "memory 1.55 TB/s" in read.text
    assert "1.700 ms" in read.text and "predicted is 6.8 % less" in read.text
    assert read.tags.count("circle") >= 18 + 7


def test_without_measurements_there_is_no_scatter_of_them():
    bare = example(kernels(measured=False))
    assert "Predicted and measured" not in page_of(bare) and "measured" not in headings(bare)


@pytest.mark.parametrize("device", ["hl-100", "my own"])
def test_a_device_without_peaks_has_a_roofline_without_lines(device):
    assert peaks(device) == (None, None, None)
    page = page_of(example(device=device))
    before, after = page.split("Predicted and measured")
    assert f"The description of {device} has no peak and no bandwidth." in before
    assert 'class="roof"' in after and 'class="roof"' not in before  # the diagonal


def test_peaks_are_those_of_narrow_numbers_too_where_a_kernel_is_faster():
    assert peaks("xeon-icelake-2c") == (pytest.approx(0.4352e12), 12e9, None)
    fast = [replace(kernel, flops=kernel.flops * 10) for kernel in kernels()]
    assert "fp16 peak 312 TFLOP/s" in page_of(example(fast)) and "fp16 peak" not in page_of(example())


def test_a_notebook_shows_the_number_and_the_first_kernels():
    shown = Page(notebook_html(network_report(example())).html)
    assert "1.584 ms" in shown.text and "13 more rows" in shown.text and "script" not in shown.tags
    assert shown.tags.count("tr") == 9


def test_axes_have_round_numbers_within():
    axis = LogAxis.around([3e-6, 2e-3])
    assert all(0 <= axis.share(tick) <= 1 for tick in axis.ticks()) and 3 <= len(axis.ticks()) <= 10
    assert 3 <= len(LogAxis.around([1e-9, 1e6]).ticks()) <= 10
    assert LogAxis.around([]).low < 1 < LogAxis.around([]).high
    assert linear_ticks(1.584e-3) == pytest.approx([0, 5e-4, 1e-3, 1.5e-3]) and linear_ticks(0.0) == [0.0]
