"""The page in a real browser: a network, a device and a batch in, the report out."""

from __future__ import annotations

import shutil

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the path: apt-get install chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'cdmpp[dev]'")


@pytest.fixture(scope="module")
def page(served):
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        opened.set_default_timeout(500_000)
        opened.complaints = []
        opened.on("console", lambda message: opened.complaints.append(message.text))
        opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.url_of_server = served.url
        yield opened
        browser.close()


def ask(page, network: str, batch: str = "", device: str = "h100", question: str = "network") -> None:
    page.goto(page.url_of_server)
    page.get_by_label("Question").select_option(question)
    page.get_by_label("Network").fill(network)
    page.get_by_label("Device").select_option(device)
    page.get_by_label("Batch").fill(batch)
    page.get_by_label("Runtime").select_option("torch")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_load_state()


@pytest.mark.parametrize(("question", "title"), [("network", "bert_tiny on h100"), ("step", "bert_tiny on h100")])
def test_a_question_gives_the_report(page, question, title):
    page.complaints.clear()
    ask(page, "bert_tiny", "4", question=question)
    assert title in page.locator("h1").first.inner_text()
    assert "batch 4" in page.locator("h1").first.inner_text()
    assert page.locator("svg").count() > 1 and page.locator("table tbody tr").count() > 5
    first = page.locator("tbody tr td").first.inner_text()
    page.locator("th button").first.click()
    page.locator("th button").first.click()
    assert page.locator("tbody tr td").first.inner_text() != first  # its script sorts
    assert page.complaints == []


@pytest.mark.parametrize("network", ["/etc/passwd", "module.py:function", "<script>alert(1)</script>"])
def test_what_is_refused_is_said_on_the_page(page, network):
    page.complaints.clear()
    ask(page, network)
    assert "is no name that this server has" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Network").input_value() == network
    assert page.get_by_label("Device").input_value() == "h100"
    assert [one for one in page.complaints if "400" not in one] == []


def test_names_are_proposed(page):
    page.goto(page.url_of_server)
    assert page.locator("#networks option[value='torchvision:resnet50']").count() == 1
    assert page.locator("#networks option[value='hf:gpt2']").count() == 1
