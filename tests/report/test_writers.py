"""Every result in every form: nothing gets out of its place, nothing is lost, files are whole or not there."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from pathlib import Path

import pytest

import cdmpp.report as writers
from cdmpp.errors import CdmppError
from cdmpp.report.html import colours_of, html_page, notebook_html
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.rows import write_csv
from cdmpp.report.text import text_of
from cdmpp.report.timeline_file import write_timeline
from tests.network.example_prediction import example
from tests.report.examples import REPORTS
from tests.report.read_page import NASTY, Page

KINDS = pytest.mark.parametrize("kind", REPORTS)


@KINDS
def test_hostile_names_stay_text(kind):
    report = REPORTS[kind](NASTY)
    for page in (html_page([report]), notebook_html(report).html):
        assert "alert(1)" in page and "<script>alert" not in page and "\x1b" not in page and "\x00" not in page
        read = Page(page)
        assert read.tags.count("script") == page.count("<script>") <= 1
        assert not [name for name, _ in read.attributes if name in ("src", "href") or name.startswith("on")]
        assert not {"link", "img", "iframe", "object"} & set(read.tags)
    text = text_of(report)
    assert "\x1b" not in text and "\x00" not in text and "alert(1)" in text
    json.dumps(report.answer, allow_nan=False)


@KINDS
def test_a_page_says_what_the_text_says(kind):
    report = REPORTS[kind]("a-name")
    page, text = Page(html_page([report])), text_of(report)
    assert "default-src 'none'" in html_page([report]) and not re.search(r"https?:|@import|url\(", html_page([report]))
    for total in report.totals:
        assert total.number in text and total.number in page.text
        assert " ".join(total.details.split()) in " ".join(text.split())
        assert " ".join(total.details.split()) in " ".join(page.text.split())
    for table in report.tables:
        for column in table.shown_columns:
            assert column.name in page.text
            for row in table.rows:
                assert column.cell(row) in page.text
    assert all(warning in page.text for warning in report.warnings)
    assert ("Timeline" in page.text) == bool(report.timeline)
    assert all(chart.title in page.text for chart in report.charts)


@KINDS
def test_no_cell_has_two_numbers(kind):
    report = REPORTS[kind]("name")
    for table in report.tables:
        for column in table.columns:
            if column.kind == "number":
                cells = [column.cell(row) for row in table.rows]
                assert all(len(re.findall(r"\d[\d.,]*", cell)) <= 1 for cell in cells), (column.name, cells)


@KINDS
def test_a_csv_file_has_all_rows_and_keys(kind, tmp_path):
    report, path = REPORTS[kind]("=1+1"), tmp_path / "new" / "rows.csv"
    write_csv([report], path)
    rows = list(csv.DictReader(path.open(encoding="utf-8", newline="")))
    keys = ("name", "value", "unit")
    totals = [{key: getattr(total, key) for key in keys} for total in report.totals]
    expected = report.tables[0].rows if report.tables else totals
    assert len(rows) == len(expected) and set(rows[0]) == {key for row in expected for key in row}
    assert not [cell for row in rows for cell in row.values() if cell and cell.startswith(("=", "@"))]
    for row, other in zip(rows, expected, strict=True):
        for key, value in other.items():
            if isinstance(value, float):
                assert float(row[key]) == value


@KINDS
def test_a_timeline_file_has_every_span(kind, tmp_path):
    report, path = REPORTS[kind](NASTY), tmp_path / "line.json"
    if report.timeline is None:
        with pytest.raises(CdmppError, match="no timeline"):
            write_timeline([report], path)
        assert not path.exists()
        return
    write_timeline([report], path)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(report.timeline) > 0 and min(event["ts"] for event in events) == 0
    assert all(event["dur"] >= 0 for event in events)


def test_several_reports_make_one_page_and_the_last_rows(tmp_path):
    reports = [REPORTS["replay"]("x"), REPORTS["plan"]("y")]
    page = Page(html_page(reports))
    assert page.tags.count("h1") == 2 and all(report.title in page.text for report in reports)
    write_csv(reports, tmp_path / "rows.csv")
    assert "bucket size" in (tmp_path / "rows.csv").read_text()
    write_timeline(reports, tmp_path / "line.json")
    assert json.loads((tmp_path / "line.json").read_text())["traceEvents"]


def test_ranks_that_do_the_same_share_a_row():
    text = text_of(REPORTS["replay"]("x"))
    assert [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")] == ["0 to 2", "3"]
    assert all(
        f"\n{word}" in text for word in ("step ", "speed-up", "bounds", "critical", "exchanges", "overlap", "idle")
    )


def test_a_plan_has_its_settings_and_moves():
    text = text_of(REPORTS["plan"]("a change"))
    assert "Plan: buckets of" in text and "settings   model = DistributedDataParallel(model, bucket_cap_mb" in text
    assert all(word in text for word in ("bottleneck", "best candidate", "time per batch", "bucket size", "yes"))


def test_a_trace_has_what_it_measured_and_why_it_is_slow():
    text = text_of(REPORTS["trace"]("addmm"))
    assert "2 ranks, gloo, 3 traced steps" in text and "11.50 ms (per step)" in text and "straggler rank 1" in text
    assert "communication wait" in text and "of which waiting for other ranks" in text
    names = {(span.name, span.kind) for span in REPORTS["trace"]("addmm").timeline}
    assert {("addmm", "forward"), ("mm", "backward"), ("all_reduce", "all_reduce")} <= names


def test_code_is_shown_as_it_is():
    report = Report("a plan", code=("if a < b:", "    run('x')"))
    assert "\nsettings   if a < b:\n               run('x')\n" in text_of(report)
    assert "if a < b:\n    run('x')\n" in Page(html_page([report])).words


def test_results_have_reports_by_their_type(tmp_path):
    prediction = example()
    assert writers.report_of(prediction).title.startswith("torchvision:resnet50 on a100")
    assert "1.584 ms" in writers.to_text(prediction) and "1.584 ms" in writers.in_notebook(prediction)._repr_html_()
    report = writers.report_of(prediction)
    assert writers.report_of(report) is report
    for write, name in (
        (writers.write_html, "a.html"),
        (writers.write_csv, "a.csv"),
        (writers.write_timeline, "a.json"),
    ):
        write(prediction, tmp_path / "new" / name)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.csv", "a.html", "a.json"]
    with pytest.raises(CdmppError, match="no report on a int: give a NetworkPrediction, StepPrediction"):
        writers.report_of(3)


@pytest.mark.parametrize("write", [writers.write_html, writers.write_csv, writers.write_timeline])
def test_what_cannot_be_written_leaves_all_as_it_was(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(CdmppError, match="file"):
        write(example(), tmp_path / "file" / "out")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CdmppError, match="No space left"):
        write(example(), tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


def test_optional_columns_and_rows_that_are_cut():
    columns = (
        Column("a", "name", kind="text"),
        Column("b_s", "time", "s", is_sum=True),
        Column("c", "c", is_optional=True),
    )
    table = Table("Some", columns, [{"a": f"row{i}", "b_s": 1e-3, "c": None} for i in range(5)])
    text = text_of(Report("t", tables=(table,)), rows=2)
    assert "3 more (--rows 0 shows all)" in text and "3.00 ms" in text and "row2" not in text and " c " not in text
    assert "more (--rows" not in text_of(Report("t", tables=(table,)))


def test_a_narrow_terminal_keeps_the_columns_that_matter():
    report = writers.report_of(example())
    text = text_of(report, 5, width=80)
    assert "share" in text and "total" in text and "bound by" not in text
    assert "bound by" in text_of(report, 5)


def test_totals_say_which_number_is_which():
    parts = (Total("weights", 1e6, "B"), Total("inputs", 2e3, "B"))
    assert Total("memory", 1.002e6, "B", parts=parts).text == "1.00 MB (weights 1.00 MB, inputs 2.00 kB)"
    assert Total("latency", 1e-3, "s", interval=(0.8, 0.9e-3, 1.2e-3)).text == "1.00 ms (80 %: 900 us - 1.20 ms)"
    assert (
        Total("source", "from tests").text == "from tests" and Total("time", parts=parts[:1]).text == "weights 1.00 MB"
    )


def test_labels_beyond_the_palette_are_grey():
    report = REPORTS["network"]("x")
    assert colours_of(report) == {"x": "c0"}
    spans = [type(report.timeline[0])("row", "n", f"kind{i}", 0.0, 1.0 + i) for i in range(12)]
    colours = colours_of(Report("t", timeline=tuple(spans)))
    assert colours["kind11"] == "c0" and colours["kind0"] == colours["kind1"] == "c9"


def test_the_script_that_a_page_allows_is_its_own():
    """A browser runs the script only if its hash is that of the text between the tags, to the last byte."""
    page = html_page([REPORTS["network"]("a name")])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'", page)
    assert allowed == base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_templates_are_packaged():
    folder = Path(writers.__file__).with_name("templates")
    assert {path.name for path in folder.iterdir()} >= {
        "page.html",
        "parts.html",
        "notebook.html",
        "page.css",
        "page.js",
    }
