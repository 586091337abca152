"""A token and TLS: who may ask, and that nobody on the way reads it."""

from __future__ import annotations

import asyncio
import hmac
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cdmpp
from cdmpp import cli
from cdmpp.errors import RemoteError, UsageError
from cdmpp.serve.settings import ServeSettings
from cdmpp.serve.token import VARIABLE, bearer, checked_token, is_token, token_of
from tests.serve.conftest import Served

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
TOKEN = "0123456789abcdef-of-a-test"
ASKED = {"network": "bert_tiny", "device": "a100", "batch": 4, "runtime": "torch"}


@pytest.mark.parametrize("text", ["", "short", "a b" * 10, "x" * 1001, "ü" * 20, "a" * 20 + "\n" + "b" * 20])
def test_what_is_no_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError, match="token is no token: expected 16 to 1000 letters") as error:
        ServeSettings(token=text)
    assert not text or text not in str(error.value)


def test_a_token_is_the_line_of_a_file_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert token_of(None) is None
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_of(file) == TOKEN and TOKEN not in repr(ServeSettings(token=TOKEN))
    monkeypatch.setenv(VARIABLE, "of-the-environment")
    assert token_of(None) == "of-the-environment" and token_of(file) == TOKEN
    monkeypatch.setenv(VARIABLE, "")  # set, and by mistake to nothing: not the same as open to all
    with pytest.raises(UsageError, match=f"the variable {VARIABLE} is no token"):
        token_of(None)
    file.write_text("")
    for path, why in ((file, "the content of"), (tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=why):
            token_of(path)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"authorization", b"Bearer abc")], b"abc"),
        ([(b"Authorization", b"bearer  abc ")], b"abc"),
        ([(b"authorization", b"Basic abc")], b""),
        ([(b"authorization", b"abc")], b""),
        ([(b"authorization", b"Bearer abc"), (b"authorization", b"Bearer abc")], b""),
        ([], b""),
    ],
)
def test_bearers_are_read(headers: list[tuple[bytes, bytes]], found: bytes) -> None:
    assert bearer(headers) == found


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, compare = list[tuple[int, int]](), hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    assert is_token(TOKEN, TOKEN) and is_token(TOKEN.encode(), TOKEN)
    assert not any(is_token(one, TOKEN) for one in ("", TOKEN[:-1], TOKEN + "x", b"\xff" * 9, "\ud800"))
    assert set(lengths) == {(32, 32)}  # of any length, by digests


def _status(method: str, path: str, *headers: tuple[bytes, bytes], body: bytes = b"") -> tuple[int, dict[bytes, bytes]]:
    from cdmpp.serve.app import make_app

    sent = list[dict[str, Any]]()

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": list(headers), "http_version": "1.1", "scheme": "http", "root_path": ""}  # fmt: skip
    asyncio.run(make_app(ServeSettings(token=TOKEN))(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]) | {b"": b"".join(one.get("body", b"") for one in sent[1:])}


GIVEN = (b"authorization", b"Bearer " + TOKEN.encode())
JSON, FORM = (b"content-type", b"application/json"), (b"content-type", b"application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", one) for one in ("/v1/health", "/v1/devices", "/v1/models", "/v1/networks", "/openapi.json", "/report",
                              "/nowhere", "//", "/./", "/REPORT")]
    + [("POST", f"/v1/{one}") for one in ("predict", "network", "step", "plan")] + [("POST", "/"), ("PUT", "/report")],
)  # fmt: skip
def test_everything_but_the_form_needs_the_token(method: str, path: str) -> None:
    for headers in ((), ((b"authorization", b"Bearer " + b"x" * 26),), (GIVEN, GIVEN)):
        status, found = _status(method, path, JSON, *headers)
        assert status == 401 and found[b"www-authenticate"].startswith(b"Bearer")
        assert TOKEN.encode() not in found[b""]
    assert _status(method, path, JSON, GIVEN)[0] != 401


def test_the_page_asks_for_the_token_and_tells_nothing_before() -> None:
    status, found = _status("GET", "/")
    assert status == 200 and b'name="token" type="password"' in found[b""] and b'method="post"' in found[b""]
    assert b"torchvision:" not in found[b""].replace(b'placeholder="torchvision:resnet50"', b"")
    assert b"xeon-icelake" not in found[b""]
    fields = b"verb=network&network=bert_tiny&device=a100&runtime=torch"
    for token, status in ((b"", 401), (b"&token=" + b"x" * 26, 401), (b"&token=" + TOKEN.encode(), 503)):
        found_status, found = _status("POST", "/report", FORM, body=fields + token)
        assert found_status == status, found  # 503: no process is started here
        assert TOKEN.encode() not in found[b""] and (b"bert_tiny" in found[b""])
    assert _status("POST", "/report", FORM, body=b"a=" + b"x" * 70_000)[0] == 413
    for body in (b"\xff\xfe", b"&".join(b"%d=1" % one for one in range(50))):
        assert _status("POST", "/report", FORM, body=body)[0] in (400, 401)


def test_a_key_goes_with_a_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="ssl_keyfile .* goes with ssl_certfile"):
        ServeSettings(ssl_keyfile=Path("key.pem"))
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file, why in ((tmp_path / "none.pem", "No such file"), (empty, "cannot serve TLS")):
        caplog.clear()
        assert cli.main(["serve", "--port", "0", "--ssl-certfile", str(file)]) != 0
        assert why in caplog.text and "private key" in caplog.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out own.pem -days 1 -subj /CN=localhost -addext"
    command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    locked = ["openssl", "rsa", "-aes256", "-in", "key.pem", "-out", "locked.pem", "-passout", "pass:secret"]
    subprocess.run(locked, cwd=folder, check=True, capture_output=True)
    return folder / "own.pem"


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locked = str(certificate.with_name("locked.pem"))
    assert cli.main(["serve", "--port", "0", "--ssl-certfile", str(certificate), "--ssl-keyfile", locked]) != 0
    assert "without a passphrase" in caplog.text


def test_a_server_with_both_answers_who_has_the_token(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    file = tmp_path / "token"
    file.write_text(TOKEN)
    key = certificate.with_name("key.pem")
    words = ("--token-file", str(file), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    served = Served(tmp_path, "--processes", "1", "--plan-processes", "1", "--time-s", "500", *words)
    try:
        assert served.url.startswith("https://") and TOKEN not in served.log.read_text()
        with cdmpp.remote(served.url, token=TOKEN, ca_file=certificate) as server:
            server.wait_until_ready()
            found = server.predict_network(cdmpp.Workload("bert_tiny", batch=4), device="a100", runtime="torch")
            assert found.latency_s > 0
        monkeypatch.setenv(VARIABLE, TOKEN)
        cdmpp.remote(served.url, ca_file=certificate).close()
        with pytest.raises(RemoteError, match="no server answers"):  # nobody vouches for this certificate
            cdmpp.remote(served.url, token=TOKEN)
        monkeypatch.delenv(VARIABLE)
        for token in (None, "x" * 26):
            with pytest.raises(RemoteError, match="the token of this server is missing, or it is another one"):
                cdmpp.remote(served.url, token=token, ca_file=certificate)
        asked = httpx.Client(verify=str(certificate))
        form = asked.post(f"{served.url}/report", data={**ASKED, "verb": "network", "token": TOKEN}, timeout=500)
        assert form.status_code == 200 and "bert_tiny on a100" in form.text
        assert TOKEN not in served.log.read_text()
        environment = Path(f"/proc/{served.process.pid}/environ")
        assert not environment.exists() or TOKEN not in environment.read_text(errors="replace")
    finally:
        assert served.stop() == 0


def test_a_token_of_another_kind_is_refused_before_anything_is_asked() -> None:
    for token in ("", "x", 5, b"x" * 20):
        with pytest.raises(UsageError, match="no token"):
            cdmpp.remote("http://127.0.0.1:1", token=token)  # type: ignore[arg-type]
    assert checked_token("x" * 16, "it") == "x" * 16
