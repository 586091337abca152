"""Memory that a number in a file or an option asks for is compared with what is free, before it is allocated."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdmpp.errors import CdmppError

RESERVE_BYTES = 2**29
"""Left free in any case."""
_REFUSED = (
    "can't allocate memory", "Cannot allocate memory", "Unable to allocate", "bad_alloc",
    "Storage size calculation overflowed", "integer multiplication overflow",
)  # fmt: skip
"""Words by which torch, the system, NumPy and C++ report that memory ran out, or that 64 bits do not count it."""
_SAID = "of memory that are free"
_ASSERTED = re.compile(r"\[enforce fail [^]]*\] err == 0\. DefaultCPUAllocator: ")
_ELSEWHERE_BYTES = 2**34
"""Taken as free where the system does not say what is."""


def free_bytes() -> int:
    """Return the memory that this process may still take: what is free, within the limit of ``ulimit -v``."""
    free = _ELSEWHERE_BYTES
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - _address_space())
    return max(free - RESERVE_BYTES, 0)


def check_bytes(what: str, n_bytes: int, remedy: str) -> None:
    """Raise ``CdmppError`` for more ``n_bytes`` than are free; ``what`` begins the message, ``remedy`` ends it."""
    if n_bytes > (free := free_bytes()):
        raise CdmppError(f"{what} needs {_size(n_bytes)} of memory and {_size(free)} are free: {remedy}")


@contextmanager
def within_free_memory(what: str) -> Iterator[None]:
    """Let what runs in the block take no more memory than is free; it is what a machine would be stopped by.

    Raises:
        CdmppError: more was asked for, by whichever library; ``what`` begins the message.
    """
    before, free = resource.getrlimit(resource.RLIMIT_AS), free_bytes()
    limit_memory(free)
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error) or (isinstance(error, CdmppError) and _SAID in str(error)):
            raise
        reason = _ASSERTED.sub("", next(iter(str(error).splitlines()), type(error).__name__))
        raise CdmppError(f"{what} needs more than the {_size(free)} {_SAID}: {reason}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_memory(more_bytes: int) -> None:
    """Let this process, and those that it starts, take ``more_bytes`` of address space from here on, and no more."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + more_bytes
    if before == resource.RLIM_INFINITY or wanted < before:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _is_out_of_memory(error: BaseException | None) -> bool:
    """True if the error, or one that it follows from, says that memory was refused."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error) for words in _REFUSED):
            return True
        error = error.__cause__ or error.__context__
    return False


def _address_space() -> int:
    with suppress(OSError, ValueError, IndexError):
        return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    return 0


def _size(n_bytes: int) -> str:
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if n_bytes >= 10**power:
            return f"{min(n_bytes, 10**30) / 10**power:,.4g} {unit}"
    return f"{n_bytes} B"
