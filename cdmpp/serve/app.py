"""The HTTP interface: four questions, lists of names, and a page that asks them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse as Json
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from cdmpp import devices
from cdmpp.collectives import cluster, interconnect
from cdmpp.errors import CdmppError
from cdmpp.predict.catalogue import models
from cdmpp.serve.answers import AnswerError, Answers
from cdmpp.serve.body import parsed
from cdmpp.serve.gatekeeper import Gatekeeper
from cdmpp.serve.names import network_names
from cdmpp.serve.page import add_page
from cdmpp.serve.refusal import HEADERS, Refusal, refusal, status_of
from cdmpp.serve.request import REQUESTS, NetworkRequest, PlanRequest, PredictRequest, StepRequest, Strict
from cdmpp.serve.settings import ServeSettings
from cdmpp.version import __version__

log = logging.getLogger(__name__)
Form = Literal["json", "html", "object"]
"""``json``: as ``--json`` prints it; ``html``: the page of ``--html``; ``object``: for the client of this package."""
_TYPES = {"json": "application/json", "object": "application/json", "html": "text/html; charset=utf-8"}
_TEXT = """\
Predicts how long tensor programs, networks and training steps run on a device. Answers are the JSON that the commands
of the same names print with `--json`; `form=html` gives the page that `--html` writes. No path and no code is read:
networks are names, ONNX bytes or stored graphs, programs are TVMScript or TVM's JSON, which is read, never executed.
"""


def make_app(settings: ServeSettings) -> FastAPI:
    """Return the application; its processes start and end with it."""
    answers = Answers(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        answers.start()
        try:
            yield
        finally:
            await answers.stop()

    app = FastAPI(title="cdmpp", version=__version__, description=_TEXT, lifespan=lifespan, docs_url=None,
                  redoc_url=None, default_response_class=Response)  # fmt: skip
    app.router.route_class = _StrictRoute
    app.state.answers = answers
    app.add_middleware(Gatekeeper, settings=settings)
    _add_questions(app, answers)
    _add_lists(app, answers)
    add_page(app, answers)
    own = (
        (RequestValidationError, _invalid),
        (HTTPException, _no_such),
        (CdmppError, refused),
        (Exception, _unforeseen),
    )
    for kind, handler in (*own, (Exception, _unforeseen)):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]
    return app


def _add_questions(app: FastAPI, answers: Answers) -> None:
    told: dict[int | str, Any] = {
        status: {"model": Refusal, "description": text}
        for status, text in {
            400: "A value that cannot be, or a name that is not here.", 413: "The body is too large.",
            415: "The body is no JSON, or packed.", 422: "The question cannot be answered; the message says why.",
            503: "As many requests are here as may, or the server is starting.", 504: "No answer within the time.",
        }.items()
    }  # fmt: skip

    async def answer(verb: str, asked: Strict, form: Form) -> Response:
        body = await answers.ask(verb, asked.model_dump(exclude_unset=True), form)
        return Response(body, media_type=_TYPES[form], headers=HEADERS)

    @app.post("/v1/predict", responses=told, tags=["questions"], summary="Programs or operators")
    async def predict(question: PredictRequest, form: Form = "json") -> Response:
        return await answer("predict", question, form)

    @app.post("/v1/network", responses=told, tags=["questions"], summary="One run of a network")
    async def network(question: NetworkRequest, form: Form = "json") -> Response:
        return await answer("network", question, form)

    @app.post("/v1/step", responses=told, tags=["questions"], summary="A training step on one device")
    async def step(question: StepRequest, form: Form = "json") -> Response:
        return await answer("step", question, form)

    @app.post("/v1/plan", responses=told, tags=["questions"], summary="All ways to train on several devices")
    async def plan(question: PlanRequest, form: Form = "json") -> Response:
        return await answer("plan", question, form)


def _add_lists(app: FastAPI, answers: Answers) -> None:
    @app.get("/v1/health", tags=["lists"], summary="Version, and whether questions are answered yet")
    async def health() -> Response:
        status = 200 if answers.is_ready else 503
        return Json({"version": __version__, "ready": answers.is_ready}, status, HEADERS)

    @app.get("/v1/devices", tags=["lists"], summary="Devices, clusters and links by name")
    async def list_devices() -> Response:
        every = [{"name": one.name, "title": one.title, "kind": one.kind} for one in devices.all_devices()]
        return Json({"devices": every, "cluster": cluster.names(), "link": interconnect.names()}, headers=HEADERS)

    @app.get("/v1/models", tags=["lists"], summary="Trained models")
    async def list_models() -> Response:
        every = [{"name": one.name, "features": one.features, "devices": one.devices} for one in models() if one.usable]
        return Json({"models": every}, headers=HEADERS)

    @app.get("/v1/networks", tags=["lists"], summary="Networks by name")
    async def list_networks() -> Response:
        return Json({"networks": sorted(network_names() | answers.torchvision)}, headers=HEADERS)


class _StrictRoute(APIRoute):
    """Bodies are JSON without numbers that are none, keys that stand twice, or endless nesting."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        original = super().get_route_handler()

        async def handler(request: Request) -> Response:
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    return refusal(415, "UsageError", "the body is JSON: send Content-Type: application/json")
                try:
                    request._json = parsed(await request.body())
                except ValueError as error:
                    return refusal(400, "UsageError", f"the body is no JSON: {error}")
            return await original(request)

        return handler


async def refused(_: Request, error: Exception) -> Response:
    """Answer an error of ours with its status; what was not foreseen is logged with its place, and not told."""
    kind = error.kind if isinstance(error, AnswerError) else type(error).__name__
    status, message = status_of(kind), str(error)
    if isinstance(error, AnswerError) and error.trace:
        log.error("a question was answered by an error that nobody foresaw:\n%s", error.trace)
        status, kind, message = 500, "CrashError", f"this question meets a fault of the server ({kind})"
    return refusal(status, kind, message)


async def _unforeseen(_: Request, error: Exception) -> Response:
    return refusal(500, "CrashError", f"this question meets a fault of the server ({type(error).__name__})")


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """Name the first fields that cannot be, and what is allowed."""
    told = []
    for one in error.errors()[:5]:
        where = ".".join(str(part) for part in one["loc"] if part != "body") or "the body"
        why = str(one["msg"])[:300]
        if one["type"] == "extra_forbidden":
            known = REQUESTS[request.url.path.rpartition("/")[2]].model_fields if len(one["loc"]) == 2 else ()
            near = difflib.get_close_matches(where[:200], known, n=3, cutoff=0.5)
            why = f"there is no such field; nearest: {', '.join(near)}" if near else "there is no such field"
        told.append(f"{where[:200]}: {why}")
    return refusal(422, "UsageError", "; ".join(told))


async def _no_such(_: Request, error: HTTPException) -> Response:
    message = {404: "there is no such address: GET /openapi.json lists all", 405: "this address takes another method"}
    return refusal(error.status_code, "UsageError", message.get(error.status_code, str(error.detail)),
                   error.headers)  # fmt: skip
