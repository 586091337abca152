"""What a user sees of a network prediction: rows, totals, files, the page."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cdmpp.errors import CdmppError
from cdmpp.report.axis import LogAxis, linear_ticks
from cdmpp.report.page import html_page, notebook_html, peaks
from cdmpp.report.report import as_dict, by_class, headings, table, work_s
from cdmpp.report.summary import parts, rate, summary
from cdmpp.report.thinning import MOST, blocks_of
from cdmpp.units import quantity, span, visible
from tests.network.example_prediction import GAP_S, example, kernels

NASTY = "<script>alert(1)</script>\"'&\x1b[31m\n"


class Page(HTMLParser):
    """Tags, their attributes and the text between them; complains where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.00123, "s", "1.23 ms"),
        (0.9999, "s", "1.00 s"),
        (9.996e-6, "s", "10.0 µs"),
        (999.96e3, "B", "1.00 MB"),
        (12, "B", "12 B"),
        (0.25, "FLOP", "0.250 FLOP"),
        (0, "s", "0 s"),
        (-957e-6, "s", "-957 µs"),
        (None, "s", "-"),
        (float("nan"), "s", "-"),
        (1e-16, "s", "0 s"),
        (3e-11, "s", "0.0300 ns"),
    ],
)
def test_a_quantity_has_the_prefix_that_fits(value, unit, shown):
    assert quantity(value, unit) == shown


def test_a_span_names_its_unit_once_where_it_can():
    assert span(1.1e-3, 1.5e-3, "s") == "1.10 - 1.50 ms"
    assert span(0.9e-3, 1.5e-3, "s") == "900 µs - 1.50 ms"
    assert rate(32, 1.5e-3) == "21,333/s" and rate(1, 0.5) == "2/s" and rate(1, 0.0) == "0/s"


def test_rows_and_overhead_make_the_latency():
    prediction = example()
    rows = table(prediction)
    total = sum(row["total_s"] for row in rows) + prediction.overhead_s
    assert total == pytest.approx(prediction.latency_s) == pytest.approx(work_s(prediction))
    assert sum(row["share"] for row in rows) == pytest.approx(1 - prediction.overhead_s / total)
    assert [row["total_s"] for row in rows] == sorted((row["total_s"] for row in rows), reverse=True)
    assert sum(row["count"] for row in rows) == len(prediction.timeline.spans) == 62
    assert sum(by_class(prediction).values()) + prediction.overhead_s == pytest.approx(prediction.latency_s)
    assert sum(parts(prediction).values()) == pytest.approx(prediction.latency_s, rel=6e-3)
    first = rows[0]
    assert first["flops_per_s"] == first["flops"] / first["latency_s"]
    assert first["total_s"] == first["count"] * (first["latency_s"] + first["cold_s"])


def test_what_runs_side_by_side_is_told():
    prediction = example(engines=("a", "b", "c"))
    assert prediction.latency_s < 0.5 * work_s(prediction)
    assert parts(prediction)["side by side"] < 0
    assert "side by side -" in summary(prediction)
    assert max(row["share"] for row in table(prediction)) < 0.2
    assert as_dict(prediction)["critical_path_share"] < 0.5


def test_json_has_all_numbers_with_units():
    prediction = example(measured_s=1.7e-3)
    told = json.loads(json.dumps(as_dict(prediction), allow_nan=False))
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
    assert as_dict(example([odd]))["kernels"][0]["flops"] is None


def test_without_intervals_none_are_shown():
    prediction = example(intervals=False)
    assert "interval" not in headings(table(prediction)) and "%:" not in summary(prediction)
    assert "Interval: none: " in html_page(prediction)
    assert as_dict(prediction)["intervals_s"] == {}


def test_another_level_is_shown_by_its_name():
    used = [replace(kernel, intervals={0.5: (0.9 * kernel.latency_s, 1.1 * kernel.latency_s)}) for kernel in kernels()]
    prediction = example(used, intervals=False)
    assert "50 % interval" in html_page(prediction)


def test_an_empty_network_is_no_error():
    prediction = example([])
    assert table(prediction) == [] and as_dict(prediction)["throughput_per_s"] is None
    Page(html_page(prediction))
    Page(notebook_html(prediction))
    assert "latency    0 s" in summary(prediction)


def test_a_kernel_that_takes_no_time_is_no_error():
    free = replace(kernels()[0], latency_s=0.0, cold_s=0.0, io_bytes=0.0, intervals={}, measured_s=None)
    Page(html_page(example([free])))
    assert table(example([free]))[0]["flops_per_s"] is None


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CdmppError, match="pip install pandas"):
        example().to_frame()


def test_frames_have_a_row_a_kernel():
    pytest.importorskip("pandas")
    prediction = example()
    assert list(prediction.to_frame()["kernel"]) == [row["kernel"] for row in prediction.table()]


def test_csv_has_every_kernel(tmp_path):
    used = [replace(kernels()[0], name="=1+1"), *kernels()[1:]]
    prediction = example(used)
    rows = list(csv.DictReader(prediction.save_csv(tmp_path / "new" / "k.csv").open(encoding="utf-8")))
    assert len(rows) == len(used) and "плотный_слой_全結合" in {row["kernel"] for row in rows}
    assert "'=1+1" in {row["kernel"] for row in rows}  # no spreadsheet runs it
    assert [float(row["total_s"]) for row in rows] == [row["total_s"] for row in prediction.table()]
    assert prediction.save_csv(tmp_path / "k.csv").read_text().count("\n") == len(used) + 1


def test_the_trace_has_every_call(tmp_path):
    prediction = example(engines=("a", "b"))
    trace = json.loads(prediction.save_trace(tmp_path / "trace.json").read_text())
    assert len([event for event in trace["traceEvents"] if event["ph"] == "X"]) == 62


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("kept")
    prediction = example()
    for save in (prediction.save_csv, prediction.save_trace, prediction.save_html):
        with pytest.raises(CdmppError, match="file"):
            save(tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


def test_a_report_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    page = tmp_path / "r.html"
    page.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CdmppError, match="No space left"):
        example().save_html(page)
    assert page.read_text() == "old" and list(tmp_path.iterdir()) == [page]


def test_the_page_tells_everything_and_loads_nothing():
    prediction = example(measured_s=1.7e-3)
    page = html_page(prediction)
    read = Page(page)
    words = " ".join(read.words)
    for title in (
        "Timeline",
        "Where the time goes",
        "Roofline",
        "Predicted and measured",
        "All kernels",
        "How to read",
    ):
        assert title in words
    assert "fp32 peak 19.5 TFLOP/s" in words and "memory 1.55 TB/s" in words
    assert all(warning in words for warning in prediction.warnings) and "1.710" not in words and "1.700 ms" in words
    assert not {"link", "img", "iframe", "object"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in page and not re.search(r"https?:|@import|url\(", page)
    assert read.tags.count("circle") >= 18 + 7


def test_without_measurements_there_is_no_scatter_of_them():
    used = kernels(measured=False)
    assert "Predicted and measured" not in html_page(example(used)) and "measured" not in headings(table(example(used)))


@pytest.mark.parametrize("device", ["hl-100", "my own"])
def test_a_device_without_peaks_has_a_roofline_without_lines(device):
    assert peaks(device) == (None, None, None)
    page = html_page(example(device=device))
    assert (
        f"The description of {device} has no peak and no bandwidth." in page
        and 'class="roof"' in page.split("Predicted and measured")[1]
    )  # the diagonal
    assert 'class="roof"' not in page.split("Predicted and measured")[0]


def test_peaks_are_those_of_narrow_numbers_too_where_a_kernel_is_faster():
    assert peaks("xeon-icelake-2c") == (pytest.approx(0.4352e12), 12e9, None)
    fast = [replace(kernel, flops=kernel.flops * 10) for kernel in kernels()]
    assert "fp16 peak 312 TFLOP/s" in html_page(example(fast)) and "fp16 peak" not in html_page(example())


def test_names_of_a_model_stay_text():
    used = [replace(kernel, name=f"{NASTY}{i}", op_class=NASTY) for i, kernel in enumerate(kernels())]
    prediction = example(used, engines=(NASTY,), network=NASTY, model=NASTY, warnings=(NASTY,), schedule=NASTY)
    for page in (html_page(prediction), notebook_html(prediction)):
        assert "<script>alert" not in page and "\x1b" not in page
        assert Page(page).tags.count("script") == page.count("<script>") <= 1
    assert "\x1b" not in summary(prediction) and summary(prediction).count("\n") == 6
    assert visible("a\x1b[31m\nb") == "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b"
    assert json.loads(json.dumps(as_dict(prediction)))["network"] == NASTY  # JSON has them as they are


def test_many_calls_and_kernels_give_a_small_page():
    base = kernels()
    many = [replace(base[i % 21], name=f"fused_kernel_of_a_usual_name_{i}", task_id=str(i)) for i in range(3000)]
    prediction = example([replace(kernel, count=2) for kernel in many], engines=("a", "b"))
    blocks = blocks_of(prediction.timeline)
    assert sum(block.calls for block in blocks) == 6000 and len(blocks) < 2 * MOST + 4
    for resource in ("a", "b"):
        row = [block for block in blocks if block.resource == resource]
        assert all(a.end_s <= b.start_s + 1e-15 for a, b in zip(row, row[1:], strict=False))
    page = html_page(prediction)
    assert len(page.encode()) < 3e6
    assert "short calls are drawn together" in page and "The first 1000 of 3000" in page


def test_few_calls_are_drawn_one_by_one():
    blocks = blocks_of(example().timeline)
    assert [block.calls for block in blocks] == [1] * 62
    assert blocks[1].start_s - blocks[0].end_s == pytest.approx(GAP_S)


def test_a_notebook_shows_the_number_and_the_first_kernels():
    prediction = example()
    shown = Page(prediction._repr_html_())
    words = " ".join(shown.words)
    assert "1.584 ms" in words and "13 more kernels" in words and "script" not in shown.tags
    assert shown.tags.count("tr") == 9


def test_axes_have_round_numbers_within():
    axis = LogAxis.around([3e-6, 2e-3])
    assert all(0 <= axis.share(tick) <= 1 for tick in axis.ticks()) and 3 <= len(axis.ticks()) <= 10
    assert 3 <= len(LogAxis.around([1e-9, 1e6]).ticks()) <= 10
    assert LogAxis.around([]).low < 1 < LogAxis.around([]).high
    assert linear_ticks(1.584e-3) == pytest.approx([0, 5e-4, 1e-3, 1.5e-3]) and linear_ticks(0.0) == [0.0]
