"""The page in a real browser: a network, a device and a batch in, the report out."""

from __future__ import annotations

import shutil

import pytest

from tests.serve.conftest import PATIENT, Served

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the path: apt-get install chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'cdmpp[dev]'")


TOKEN = "0123456789abcdef-of-a-test"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def opened(browser, url: str):
    page = browser.new_page()
    page.set_default_timeout(500_000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.url_of_server = url
    return page


@pytest.fixture(scope="module")
def page(browser, served):
    return opened(browser, served.url)


@pytest.fixture(scope="module")
def locked(browser, tmp_path_factory):
    """The page of a server that wants a token."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "token").write_text(f"{TOKEN}\n")
    made = Served(folder, *PATIENT, "--token-file", "token")
    try:
        made.wait_until_ready(authorization=f"Bearer {TOKEN}")
        yield opened(browser, made.url)
    finally:
        made.stop()


def ask_with_token(page, token: str, network: str = "bert_tiny", question: str = "network") -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_label("Question").select_option(question)
    page.get_by_label("Network").fill(network)
    page.get_by_label("Device").fill("h100")
    page.get_by_label("Batch").fill("4")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_load_state()


def test_a_page_with_a_token_asks_for_it_and_answers_who_has_it(locked):
    locked.goto(locked.url_of_server)
    assert locked.get_by_label("Token").get_attribute("type") == "password"
    assert locked.get_by_role("alert").count() == 0 and locked.get_by_role("link").count() == 0
    locked.get_by_label("Network").fill("bert_tiny")
    locked.get_by_role("button", name="Ask").click()  # without a token nothing is sent
    assert locked.url == f"{locked.url_of_server}/" and locked.get_by_label("Network").input_value() == "bert_tiny"
    ask_with_token(locked, f"{TOKEN} ", question="step")  # as it was pasted
    assert "bert_tiny on h100" in locked.locator("h1").first.inner_text()
    assert locked.locator("table tbody tr").count() > 5
    assert TOKEN not in locked.url and TOKEN not in locked.content() and locked.context.cookies() == []
    locked.go_back()
    assert locked.get_by_label("Question").input_value() == "step"


@pytest.mark.parametrize("token", ["x" * 26, TOKEN.upper(), "short", "ü" * 20])
def test_a_wrong_token_is_said_on_the_page_which_keeps_the_rest(locked, token):
    locked.goto(locked.url_of_server)
    locked.complaints.clear()
    ask_with_token(locked, token, question="step")
    assert locked.get_by_role("alert").inner_text() == "the token of this server is missing, or it is another one"
    assert locked.get_by_label("Token").input_value() == "" and token not in locked.content()
    kept = {"Network": "bert_tiny", "Device": "h100", "Batch": "4", "Question": "step"}
    assert {name: locked.get_by_label(name).input_value() for name in kept} == kept
    assert [one for one in locked.complaints if "401" not in one] == []


def test_what_is_refused_with_the_token_keeps_the_question_and_not_the_token(locked):
    locked.goto(locked.url_of_server)
    ask_with_token(locked, TOKEN, "/etc/passwd", "step")
    assert "is no name that this server has" in locked.get_by_role("alert").inner_text()
    assert locked.get_by_label("Question").input_value() == "step" and TOKEN not in locked.content()


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
