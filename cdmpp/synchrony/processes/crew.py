"""Crew: the processes of a real job, how they are started, told, and ended; and what each may use of this machine."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from cdmpp.errors import CdmppError, UsageError
from cdmpp.synchrony.processes import namespaces, quota
from cdmpp.synchrony.processes.wire import told

START_LIMIT_S = 300.0
"""Seconds that a process may take to be ready, and a loss to be computed after the run."""


def check_sendable(name: str, value: Any) -> None:
    """Raise ``UsageError`` where an argument cannot be given to other processes."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{name} cannot be given to other processes ({error}): expected a function of a module, or "
            "functools.partial"
        ) from None


@contextmanager
def limits(
    cpu_shares: Sequence[float | None], mbits: Sequence[float | None], fair: int = 0
) -> Iterator[tuple[Sequence[quota.Quota | None], Sequence[namespaces.Place | None]]]:
    """Make a quota for each CPU share, and a namespace for every process where any link has a rate.

    Args:
        cpu_shares: of a core; None: no limit.
        mbits: of the link of each process; None: no limit.
        fair: as of ``namespaces.links``.

    Raises:
        UsageError: the kernel refuses, or root is needed.
    """
    with ExitStack() as stack:
        try:
            shares = stack.enter_context(quota.quotas(cpu_shares))
            spots: Sequence[namespaces.Place | None] = [None for _ in mbits]
            if any(one is not None for one in mbits):
                spots = stack.enter_context(namespaces.links(mbits, fair=fair))
        except RuntimeError as error:
            raise UsageError(
                f"the limits of the job cannot be set here: {error}. Leave out cpu_share and mbit to run without limits"
            ) from None
        yield shares, spots


class Crew:
    """Processes that start anew: a script calls what starts them below ``if __name__ == "__main__":``."""

    def __init__(
        self, call: str, preload: Sequence[str], start_limit_s: float = START_LIMIT_S, awaited: str = ""
    ) -> None:
        """Prepare.

        Args:
            call: what the user called, for messages.
            preload: modules that every process needs.
            start_limit_s: most seconds until a process is ready.
            awaited: what has to end until then, for messages.
        """
        self._start_limit_s, self._awaited = start_limit_s, awaited
        # Children of a server that has imported torch start at once, and share nothing with the caller's threads.
        self._context = multiprocessing.get_context("forkserver")
        # The optimizers of torch import its compiler with their first step, which takes seconds.
        self._context.set_forkserver_preload([*preload, "torch._dynamo"])
        self._no_main = f'a script has to call `{call}` below `if __name__ == "__main__":`'
        self.processes: list[Any] = []
        self._by_pipe: dict[int, Any] = {}

    def pipe(self) -> tuple[Connection, Connection]:
        """Make both ends of a pipe."""
        return self._context.Pipe()

    def start(self, target: Callable[..., None], *given: Any) -> Connection:
        """Start a process that runs ``target(pipe, *given)``; return our end of its pipe."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=target, args=(theirs, *given), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        self._by_pipe[id(ours)] = process
        return ours

    def told(self, pipe: Connection, name: str, ended: str = "") -> dict[str, Any]:
        """Wait for a message of a process that is being started; ``ended``: what is said of one that is gone."""
        begin_s = time.monotonic()
        limit_s = START_LIMIT_S if ended else self._start_limit_s
        with suppress(EOFError, ConnectionError):
            if not pipe.poll(limit_s):
                raise CdmppError(f"{name} has not answered for {time.monotonic() - begin_s:.0f} s{self._awaited}")
            message = told(pipe)
            if "error" in message:
                raise CdmppError(f"{name} failed: {message['error']}")
            return message
        raise CdmppError(f"{name} {ended or self._why_ended(pipe)}")

    def _why_ended(self, pipe: Connection) -> str:
        """How a process ended before it was ready; a script without a guard ends its processes with exit code 1."""
        process = self._by_pipe.get(id(pipe))
        if process is not None:
            process.join(1.0)
        code = None if process is None else process.exitcode
        how = "" if code is None else f", with exit code {code}" if code >= 0 else f", by signal {-code}"
        return f"ended before it was ready{how}" + (f": {self._no_main}" if code in (None, 1) else "")

    def kill(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.processes.clear()
