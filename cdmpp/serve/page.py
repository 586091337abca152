"""The page that asks: a form with a network, a device and a batch, and the report as `--html` writes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.runtime import NETWORK_RUNTIMES
from cdmpp.serve.answers import AnswerError, Answers
from cdmpp.serve.names import network_names
from cdmpp.serve.refusal import HEADERS, status_of
from cdmpp.serve.request import NetworkRequest, StepRequest
from cdmpp.serve.token import is_token
from cdmpp.version import __version__

_TEMPLATES = Path(__file__).with_name("templates")
_MOST_FIELDS = 20
_VERBS = {"network": NetworkRequest, "step": StepRequest}
_SAFE = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
}


def add_page(app: FastAPI, answers: Answers) -> None:
    """Add the form at ``/`` and its answers at ``/report``."""

    @app.get("/", include_in_schema=False)
    async def ask(request: Request) -> Response:
        return _page(answers, dict(request.query_params), "", 200)

    @app.get("/report", include_in_schema=False)
    async def report(request: Request) -> Response:
        return await answered(dict(request.query_params))

    async def filled_in(request: Request) -> Response:
        """Answer a form with the token, which stands in no address, so that no log has it."""
        try:
            given = dict(parse_qsl((await request.body()).decode(), max_num_fields=_MOST_FIELDS))
        except ValueError:
            return _page(answers, {}, "this is no form", 400)
        token = answers.settings.token
        if not is_token(given.pop("token", "").strip(), token or ""):
            return _page(answers, given, "the token of this server is missing, or it is another one", 401)
        return await answered(given)

    app.add_route("/report", filled_in, methods=["POST"], include_in_schema=False)

    async def answered(fields: dict[str, str]) -> Response:
        filled = {name: text for name, text in fields.items() if text}
        given = dict(filled)
        verb = given.pop("verb", "network")
        try:
            kind = _VERBS.get(verb)
            if kind is None or len(given) > _MOST_FIELDS:
                return _page(answers, filled, f"there is no question {verb[:40]!r}: network or step", 400)
            asked = kind.model_validate({name: _value(name, text) for name, text in given.items()})
            body = await answers.ask(verb, asked.model_dump(exclude_unset=True), "html")
            return Response(body, media_type="text/html; charset=utf-8", headers=HEADERS)
        except ValidationError as error:
            first = error.errors()[0]
            return _page(answers, filled, f"{first['loc'][0] if first['loc'] else 'it'}: {first['msg']}", 422)
        except CdmppError as error:
            kind_of = error.kind if isinstance(error, AnswerError) else type(error).__name__
            return _page(answers, filled, str(error), status_of(kind_of))

    def _value(name: str, text: str) -> Any:
        """A number where the field is one."""
        return int(text) if name in ("batch", "sequence") and text.isdecimal() and len(text) < 12 else text


def _page(answers: Answers, given: dict[str, str], error: str, status: int) -> Response:
    asks = answers.settings.token is not None  # then nobody is told what is here
    networks = [] if asks else sorted(network_names() | answers.torchvision)
    text = _template().render(
        networks=networks, devices=[] if asks else devices.names(), runtimes=NETWORK_RUNTIMES, asks=asks, given=given,
        error=error, version=__version__,
    )  # fmt: skip
    return Response(text, status, media_type="text/html; charset=utf-8", headers=_SAFE)


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    return environment.get_template("ask.html")
