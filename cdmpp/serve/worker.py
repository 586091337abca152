"""Child process that answers questions: it may crash, hang or be refused memory, and the server goes on."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from cdmpp.errors import CdmppError
from cdmpp.platform.allocation import limit_memory
from cdmpp.platform.workers import Reply, Request, serve

_scratch, _began_bytes = Path(), 0
_MOST_LETTERS = 4000
"""Letters of a message that are told."""


def ready(request: Request) -> Reply:
    """Import what answers, and take no more memory from here on than ``memory_bytes``; ``scratch`` is for files.

    Replies with the names of torchvision's networks.
    """
    global _scratch, _began_bytes
    sys.addaudithook(_no_network)
    _scratch = Path(request["scratch"])
    tempfile.tempdir = os.environ["TMPDIR"] = request["scratch"]
    import torch

    torch.set_num_threads(1)
    from cdmpp.network.source.entry import torchvision_names
    from cdmpp.serve import programs, question  # noqa: F401

    try:
        names = [f"torchvision:{name}" for name in torchvision_names()]
    except CdmppError:  # it is not installed
        names = []
    gc.collect()
    gc.freeze()  # what was imported is not looked at again
    _began_bytes = _resident_bytes()
    limit_memory(request["memory_bytes"])
    return {"torchvision": names}


def ask(request: Request) -> Reply:
    """Answer ``questions``: several of ``predict``, or one of another verb. One answer or error for each."""
    from cdmpp.serve.question import own_folder

    questions = request["questions"]
    try:
        with own_folder(_scratch) as folder:
            found = _found(request["verb"], [one["asked"] for one in questions], folder)
        answers = [_written(given, one["form"]) for given, one in zip(found, questions, strict=True)]
    except Exception as error:  # noqa: BLE001 - it costs these questions alone
        answers = [_refused(error)] * len(questions)
    _forget_sources()
    return {"answers": answers, "grown_bytes": max(0, _resident_bytes() - _began_bytes)}


def _found(verb: str, asked: Sequence[Any], folder: Path) -> Sequence[Any]:
    if verb == "predict":
        from cdmpp.serve.programs import answers

        return answers(asked, folder)
    from cdmpp.serve.question import answer

    return [answer(verb, asked[0], folder)]


def _written(given: Any, form: str) -> dict[str, Any]:
    """An answer in the form that was asked for."""
    if isinstance(given, Exception):
        return _refused(given)
    if form == "html":
        from cdmpp.report.html import html_page

        return {"body": html_page(given.shown)}
    if form == "object":
        from cdmpp.serve.wire import to_wire

        return {"body": orjson.dumps(to_wire(given.found)).decode()}
    from cdmpp.platform.files import plain
    from cdmpp.report.answer import answer_of

    return {"body": orjson.dumps(plain(answer_of(given.reports)), option=orjson.OPT_NON_STR_KEYS).decode()}


def _refused(error: Exception) -> dict[str, Any]:
    """Type and message of an error, without places on this machine; of one that is not ours its trace, too."""
    from cdmpp.serve.question import without_places

    told = {"type": type(error).__name__, "message": without_places(str(error), _scratch)[:_MOST_LETTERS]}
    if not isinstance(error, CdmppError):
        told["trace"] = "".join(traceback.format_exception(error))[-_MOST_LETTERS:]
    return {"error": told}


def _no_network(event: str, _: tuple[Any, ...]) -> None:
    """Audit hook: no question leads to another machine."""
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise CdmppError(f"a question may not reach the network ({event})")


def _forget_sources() -> None:
    """Drop the texts that torch.fx keeps of the code of every graph, for tracebacks that nobody reads any more."""
    if (module := sys.modules.get("torch.fx.graph_module")) is None:
        return
    getattr(module._loader, "eval_cache", {}).clear()
    for name in [one for one in linecache.cache if one.startswith("<eval_with_key>")]:
        del linecache.cache[name]


def _resident_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    serve({"ready": ready, "ask": ask})
