"""The pages in a real browser: nothing sticks out, nothing complains, something is drawn, in light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import cdmpp.report
from cdmpp.network.comparison import Answer, Comparison
from cdmpp.report.comparison import comparison_report
from cdmpp.report.html import html_page
from cdmpp.report.network import network_report
from tests.network.example_prediction import example, kernels
from tests.report.examples import REPORTS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the path: apt-get install chromium")
HEIGHT = 3600
# The page lies in a frame: no window is as narrow as a telephone. The look of the frame is that of what is around it.
FRAME = """<!DOCTYPE html><html style="color-scheme:{scheme}"><body style="margin:0">
<iframe style="width:{width}px;height:{height}px;border:0" srcdoc="{page}"></iframe><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const size = (element) => element.getBoundingClientRect();
  const name = (element) => element.outerHTML.slice(0, 120);
  const out = [...page.querySelectorAll("main *")].filter((element) => !element.closest(".wide"));
  const found = {{
    page: root.scrollWidth, width: root.clientWidth,
    out: out.filter((element) => size(element).right > root.clientWidth + 1 || size(element).left < -1).map(name),
    flat: [...page.querySelectorAll("svg")].filter((svg) => size(svg).width < 5 || size(svg).height < 5).map(name),
    svgs: page.querySelectorAll("svg").length,
    background: getComputedStyle(page.body).backgroundColor,
    small: [...page.querySelectorAll("svg text")].filter((text) => size(text).height < 9).map(name),
  }};
  const first = () => page.querySelector("tbody tr td")?.textContent;
  const before = first();
  page.querySelector("th button")?.click();  // by name, from the last one
  const after = first();
  page.querySelector("th button")?.click();
  document.body.innerHTML = "<pre>" + JSON.stringify({{...found, order: [before, after, first()]}})
    .replaceAll("&", "&amp;").replaceAll("<", "&lt;") + "</pre>";
}});
</script></body></html>"""


def pages() -> dict[str, str]:
    """The usual report, one with names as long and strange as they come, and a comparison."""
    long = [replace(kernel, name=f"{'fused_' * 30}{kernel.name}", op_class=kernel.op_class * 6) for kernel in kernels()]
    words = {"network": "a/very/long/path/" * 12 + "model.onnx", "warnings": ("x" * 400, "y " * 300)}
    usual = example(measured_s=1.71e-3)
    far = replace(usual, intervals={}, device="t4", warnings=("the model never saw t4",))
    answers = (
        Answer("a100", usual),
        Answer("t4", far),
        Answer("mi100", None, "no model trained on mi100 is here. " * 6),
    )
    return {
        "report": html_page([network_report(usual)]),
        "long names": html_page(
            [network_report(example(long, engines=("stream 0", "s" * 90), intervals=False, **words))]
        ),
        "comparison": html_page([comparison_report(Comparison(answers))]),
        **{name: html_page([REPORTS[name]("a name")]) for name in ("replay", "plan", "oracle", "trace")},
    }


def browse(tmp_path: Path, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
    command = [BROWSER, *quiet, f"--user-data-dir={tmp_path / 'profile'}", *arguments, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("name", ["report", "long names", "comparison", "replay", "plan", "oracle", "trace"])
def test_nothing_sticks_out_or_complains(tmp_path, name, width, scheme):
    frame = tmp_path / "frame.html"
    page = html.escape(pages()[name], quote=True)
    frame.write_text(FRAME.format(page=page, width=width, height=HEIGHT, scheme=scheme), encoding="utf-8")
    shown = browse(tmp_path, frame, "--dump-dom", f"--window-size=1400,{HEIGHT}").stdout
    read = re.search(r"<pre>(.*)</pre>", shown, re.DOTALL)
    assert read, shown[:500]
    found = json.loads(html.unescape(read[1]))
    assert found["width"] == width and found["page"] <= width
    assert (
        found["out"] == []
        and found["flat"] == []
        and found["small"] == []
        and found["svgs"] > (1 if name in ("plan", "trace") else 4)
    )
    assert (found["background"] == "rgb(255, 255, 255)") == (scheme == "light")
    if name == "report":
        _, after, last = found["order"]
        assert after == max(kernel.name for kernel in kernels()) and last < after  # sorted one way, then the other


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_the_report_is_not_blank(tmp_path, scheme):
    image = pytest.importorskip("PIL.Image")
    page, picture = tmp_path / "report.html", tmp_path / f"{scheme}.png"
    cdmpp.report.write_html(example(measured_s=1.71e-3), page)
    dark = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    browse(tmp_path, page, f"--screenshot={picture}", "--window-size=1280,2600", dark)
    with image.open(picture) as opened:
        drawn = opened.convert("RGB")
    assert drawn.size[0] == 1280
    colours = drawn.getcolors(maxcolors=1 << 24)
    background = max(colours)[1]
    assert (sum(background) > 600) == (scheme == "light")
    bar = (0x3B, 0x6F, 0xD4) if scheme == "light" else (0x6D, 0x9B, 0xF5)
    assert dict((colour, count) for count, colour in colours).get(bar, 0) > 5000  # the bars of the first op class
