"""The executor of this process: ``local``, or the Dask cluster that ``--executor dask://HOST:PORT`` names."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar

from cdmpp.errors import UsageError
from cdmpp.execute.local import LocalExecutor
from cdmpp.execute.work import Executor, Work
from cdmpp.platform.limits import shown
from cdmpp.platform.workers import Reply, Request

LOCAL = "local"
_ADDRESS = re.compile(r"dask://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_executor: ContextVar[Executor] = ContextVar("executor", default=LocalExecutor())  # noqa: B039 - it has no state


def executor_address(given: str) -> str:
    """Check an executor's name and return it; ``UsageError`` where it is none."""
    found = _ADDRESS.fullmatch(given)
    if given == LOCAL or (found and 1 <= int(found[2]) <= 65_535):
        return given
    raise UsageError(
        f"executor {shown(given)} is unknown: expected {LOCAL}, or dask://HOST:PORT of a Dask scheduler, such as "
        "dask://127.0.0.1:8786"
    )


@contextmanager
def executing(address: str) -> Iterator[Executor]:
    """Let an executor do the work of all that is called meanwhile.

    Args:
        address: ``local`` or ``dask://HOST:PORT``.

    Raises:
        UsageError: the address is none.
        MissingToolError: Dask is not installed.
        RemoteError: no scheduler or no worker answers, or a worker runs another version.
    """
    if executor_address(address) == LOCAL:
        yield _executor.get()
        return
    from cdmpp.execute.cluster import DaskExecutor

    chosen = DaskExecutor.connected(address)
    token = _executor.set(chosen)
    try:
        yield chosen
    finally:
        _executor.reset(token)
        chosen.close()


def is_here() -> bool:
    """Return True where work is done by processes of this machine."""
    return _executor.get().is_here


def replies_of(work: Work, requests: Iterable[Request], count: int) -> Generator[tuple[int, Reply]]:
    """Yield ``(index, reply)`` of ``count`` requests as they come, each once; see ``Executor.replies``."""
    return _executor.get().replies(work, requests, count)


def in_order(replies: Generator[tuple[int, Reply]]) -> Generator[Reply]:
    """Yield replies in the order of their requests; those that came too early wait."""
    early, due = dict[int, Reply](), 0
    with closing(replies):
        for index, reply in replies:
            early[index] = reply
            while due in early:
                yield early.pop(due)
                due += 1
