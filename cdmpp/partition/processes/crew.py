"""StageCrew: the processes of a run, asked and heard together; which of them is at fault when one fails."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from typing import Any

from cdmpp.errors import CdmppError, UsageError
from cdmpp.partition.processes.layers import spans_of
from cdmpp.partition.processes.stage import Setting
from cdmpp.partition.processes.worker import Order, work
from cdmpp.synchrony.processes.crew import START_LIMIT_S, Crew, limits
from cdmpp.synchrony.processes.place import WorkerPlace
from cdmpp.synchrony.processes.wire import tell, told

_GRACE_S = 3.0
"""Seconds in which others may say what they know of a failure, beyond those that a message may take."""
_SHORT_S = 1.0


class StageCrew:
    """A process for each stage."""

    def __init__(
        self, order: Order, settings: Sequence[Setting], places: Sequence[WorkerPlace], stack: ExitStack
    ) -> None:
        """Start all processes and let them find each other; ``stack`` ends them.

        Raises:
            UsageError: the network cannot be cut so, or a limit cannot be set.
            CdmppError: a process failed.
        """
        self._timeout_s = order.timeout_s
        shares, spots = stack.enter_context(limits([one.cpu_share for one in places], [one.mbit for one in places]))
        modules = {getattr(one, "__module__", None) for one in vars(order.task).values()}
        self._crew = Crew("train", [work.__module__, *sorted(one for one in modules if one)])
        stack.callback(self._crew.kill)
        self._names = [f"rank {one.stage} (stage {one.stage})" for one in settings]
        self._pipes = [
            self._crew.start(work, order, setting, spot, place.core)
            for setting, spot, place in zip(settings, spots, places, strict=True)
        ]
        layers = self.all_told(START_LIMIT_S)[0]["layers"]
        self._names = [
            f"rank {stage} (stage {stage}, layers {span.start} to {span.stop - 1})"
            for stage, span in enumerate(spans_of(order.cuts, layers))
        ]
        self.tell_all(do="meet")
        self.all_told(START_LIMIT_S)
        for share, process in zip(shares, self._crew.processes, strict=True):
            if share is not None and process.pid is not None:
                share.take(process.pid)

    def tell(self, stage: int, **words: Any) -> None:
        """Say something to one stage."""
        with suppress(ConnectionError):  # that it is gone is seen when it is heard
            tell(self._pipes[stage], **words)

    def tell_all(self, **words: Any) -> None:
        """Say the same to all."""
        for stage in range(len(self._pipes)):
            self.tell(stage, **words)

    def take_bytes(self, stage: int) -> bytes:
        """Wait for the weights of a stage."""
        if self._pipes[stage].poll(self._timeout_s + _GRACE_S):
            with suppress(EOFError, ConnectionError):
                return self._pipes[stage].recv_bytes()
        raise self._fault({})

    def all_done(self, ended: Callable[[int, int, float], None] | None = None) -> list[dict[str, Any]]:
        """Wait until all have done what they were told.

        ``ended`` is called for each step with its number, its examples and its loss.
        """
        return self.all_told(self._timeout_s + _GRACE_S, ended)

    def all_told(self, limit_s: float, ended: Callable[[int, int, float], None] | None = None) -> list[dict[str, Any]]:
        """Wait until each has said something other than that a step has ended; at most ``limit_s`` between two words.

        Raises:
            CdmppError: a process failed, is gone or says nothing.
        """
        found: dict[int, dict[str, Any]] = {}
        stage_of = {id(pipe): stage for stage, pipe in enumerate(self._pipes)}
        while len(found) < len(self._pipes):
            missing = [pipe for stage, pipe in enumerate(self._pipes) if stage not in found]
            ready = wait(missing, limit_s)
            if not ready:
                raise self._fault({})
            for pipe in ready:
                stage = stage_of[id(pipe)]
                message = self._heard(stage)
                if message is None or "error" in message:
                    raise self._fault({stage: message})
                if message.get("event") != "step":
                    found[stage] = message
                elif message["loss"] is not None and ended:
                    ended(message["step"], message["examples"], message["loss"])
        return [found[stage] for stage in range(len(self._pipes))]

    def _heard(self, stage: int) -> dict[str, Any] | None:
        """Return a message; None where the process is gone."""
        try:
            return told(self._pipes[stage])
        except (EOFError, ConnectionError):
            return None

    def _fault(self, known: dict[int, dict[str, Any] | None]) -> CdmppError:
        """Say which stage is the cause: one that died, else one that failed, else one of which others hear nothing.

        A stage that loses a neighbour says so at once, often before what befell the neighbour is known here.
        """
        until_s = time.monotonic() + (_GRACE_S if known else _SHORT_S)
        while (left_s := until_s - time.monotonic()) > 0 and len(known) < len(self._pipes):
            if any(one is None or one["kind"] != "lost" for one in known.values()):
                until_s = min(until_s, time.monotonic() + _SHORT_S)
            pipes = [pipe for stage, pipe in enumerate(self._pipes) if stage not in known]
            for pipe in wait(pipes, min(left_s, 0.1)):
                stage = self._pipes.index(pipe)  # type: ignore[arg-type]
                message = self._heard(stage)
                if message is None or "error" in message:
                    known[stage] = message
        for stage, one in known.items():
            if one is None:
                return CdmppError(f"{self._names[stage]} died: {self._how(stage)}. The run was ended")
        for stage, one in known.items():
            if one and one["kind"] != "lost":
                kind = UsageError if one["kind"] == "refused" else CdmppError
                return kind(f"{self._names[stage]} failed:\n{one['error']}")
        silent = [self._names[stage] for stage in range(len(self._pipes)) if stage not in known]
        lost = [f"{self._names[stage]}: {one['error']}" for stage, one in known.items() if one]
        told_by = f". Others say: {'; '.join(lost)}" if lost else ""
        return CdmppError(
            f"{' and '.join(silent) or 'no stage'} has not answered for {self._timeout_s:g} s{told_by}. The run was "
            "ended; give a longer timeout_s where a pass or data() takes longer"
        )

    def _how(self, stage: int) -> str:
        process = self._crew.processes[stage]
        process.join(_SHORT_S)
        code = process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"signal {signal.Signals(-code).name}"
        return f'exit code {code}; a script has to call `train` below `if __name__ == "__main__":`'
