"""Answers: questions in, bodies out; an answer that is known is not worked out again, nor is one that is on its way."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.serve.batch_key import batch_key
from cdmpp.serve.names import check_names
from cdmpp.serve.pool import Lane
from cdmpp.serve.settings import ServeSettings


class AnswerError(CdmppError):
    """A question has no answer: the package refused it."""

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        """Take type and message as a worker process says them, and where an error was raised that is not ours."""
        super().__init__(message)
        self.kind, self.trace = kind, trace


class StartingError(CdmppError):
    """No process is ready yet."""


class Answers:
    """Everything that answers: two lanes of processes, and the answers that are kept."""

    def __init__(self, settings: ServeSettings) -> None:
        """Start nothing yet."""
        self.settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="cdmpp-serve-", ignore_cleanup_errors=True)
        own = settings.waiting, int(1e9 * settings.memory_gb), Path(self._folder.name)
        self.quick = Lane("quick", settings.processes, settings.time_s, *own)
        self.slow = Lane("slow", settings.plan_processes, settings.plan_time_s, *own)
        self._kept = _Kept(int(1e6 * settings.kept_mb))
        self._coming: dict[str, asyncio.Task[bytes]] = {}

    def start(self) -> None:
        """Begin to start the processes; called with an event loop."""
        self.quick.start()
        self.slow.start()

    async def stop(self) -> None:
        """End the processes and remove their files."""
        await asyncio.gather(self.quick.stop(), self.slow.stop())
        await asyncio.to_thread(self._folder.cleanup)

    @property
    def is_ready(self) -> bool:
        """Return True once both lanes have a process."""
        return self.quick.ready.is_set() and self.slow.ready.is_set()

    @property
    def torchvision(self) -> frozenset[str]:
        """Return the names of torchvision's networks."""
        return self.quick.torchvision

    async def ask(self, verb: str, asked: Mapping[str, Any], form: str) -> bytes:
        """Return the body of an answer.

        Raises:
            AnswerError: the package refuses the question.
            CdmppError: as of ``Lane.ask``; no process is ready.
        """
        if not self.is_ready:
            raise StartingError("the server is starting: ask again in some seconds")
        check_names(asked, self.torchvision)
        key = hashlib.sha256(json.dumps([verb, form, asked], sort_keys=True).encode()).hexdigest()
        if (kept := self._kept.get(key)) is not None:
            return kept
        if (task := self._coming.get(key)) is None:
            task = asyncio.create_task(self._asked(verb, asked, form))
            self._coming[key] = task
            task.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(task)

    async def _asked(self, verb: str, asked: Mapping[str, Any], form: str) -> bytes:
        batch = (form, *known) if verb == "predict" and (known := batch_key(asked)) is not None else None
        reply = await self._lane(verb, asked).ask(verb, asked, form, batch)
        if "error" in reply:
            told = reply["error"]
            raise AnswerError(told["type"], told["message"], told.get("trace", ""))
        return str(reply["body"]).encode()

    def _lane(self, verb: str, asked: Mapping[str, Any]) -> Lane:
        is_slow = (
            verb == "plan"
            or asked.get("ranks") is not None
            or (verb in ("network", "step") and asked.get("runtime", "tvm") != "torch")
        )
        return self.slow if is_slow else self.quick

    def _came(self, key: str, done: asyncio.Task[bytes]) -> None:
        del self._coming[key]
        if not done.cancelled() and done.exception() is None:
            self._kept.put(key, done.result())


class _Kept:
    """The latest answers, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._answers = OrderedDict[str, bytes]()

    def get(self, key: str) -> bytes | None:
        if (found := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: str, answer: bytes) -> None:
        self._answers[key] = answer
        self._bytes += len(answer)
        while self._bytes > self._most_bytes and self._answers:
            self._bytes -= len(self._answers.popitem(last=False)[1])
