"""A network namespace for each process, joined by a bridge, each link held to a rate. Always deleted. Needs root."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MOST = 254
_SHARED_BUCKET = ("burst", "4kb", "cburst", "4kb")
_QUANTUM = ("quantum", "3000")
"""Two packets at a time of each class that has something to send."""


@dataclass(frozen=True)
class Place:
    """A network namespace and the address of its only link."""

    namespace: str
    address: str
    outer: str = ""
    """The other end of its link, on the bridge."""

    @property
    def command(self) -> list[str]:
        """The words that run a command in this namespace when they are put before it."""
        return ["ip", "netns", "exec", self.namespace]

    def enter(self) -> None:
        """Move the calling thread, and every thread it starts later, into this namespace.

        Raises:
            OSError: the kernel refused.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        with (_FOLDER / self.namespace).open() as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.namespace)


def why_not() -> str | None:
    """Return why no namespaces can be made here; None where they can."""
    try:
        with links([1000, 1000]):
            return None
    except RuntimeError as error:
        return str(error)


@contextmanager
def links(mbits: Sequence[float | None], fair: int = 0) -> Iterator[tuple[Place, ...]]:
    """Make one place for each of ``mbits``: Mbit/s out of it and into it; None leaves a link unlimited.

    The token bucket holds 32 KB, so that little goes free. The links of the first ``fair`` places are shared equally by
    the other places that use them at the same time; all others serve packets in the order in which they come. Classes
    that share a link have buckets of 4 KB: what each may send at once is lent by their parent, and as long as it is not
    given back nobody has more than an equal part, so that with 32 KB the last of several that push at the same time
    would fall 15 ms further behind with each push.

    Raises:
        RuntimeError: what is missing, or what the kernel refused.
    """
    if missing := [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]:
        raise RuntimeError(f"{', '.join(missing)} not found: install iproute2 and util-linux")
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces need root")
    sweep()
    tag = f"cj{os.getpid()}"
    bridge = f"{tag}br"
    places = tuple(Place(f"{tag}n{rank}", f"10.77.0.{rank + 1}", f"{tag}v{rank}") for rank in range(len(mbits)))
    if len(places) > _MOST:
        raise RuntimeError(f"{len(places)} links: one bridge has addresses for {_MOST}")
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for rank, (place, mbit) in enumerate(zip(places, mbits, strict=True)):
            outer, inner = place.outer, f"{tag}w{rank}"
            _run("ip", "netns", "add", place.namespace)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            _run("ip", "link", "set", inner, "netns", place.namespace, "name", "eth0")
            _run(*place.command, "ip", "addr", "add", f"{place.address}/24", "dev", "eth0")
            _run(*place.command, "ip", "link", "set", "lo", "up")
            _run(*place.command, "ip", "link", "set", "eth0", "up")
            if mbit is not None:
                limit(place, mbit, [one.address for one in places if one != place] if rank < fair else [])
        yield places
    finally:
        for place in places:
            _run("ip", "netns", "del", place.namespace, fail=False)
            _run("ip", "link", "del", place.outer, fail=False)
        _run("ip", "link", "del", bridge, fail=False)


def limit(place: Place, mbit: float, peers: Sequence[str] = ()) -> None:
    """Hold the link of a place to ``mbit`` Mbit/s each way, also while something runs there.

    ``peers``: addresses that share it equally; without them packets are served in the order in which they come.
    """
    for inside, device, end in (((), place.outer, "src"), (place.command, "eth0", "dst")):
        _limit(inside, device, mbit, end, peers)


def _limit(inside: Sequence[str], device: str, mbit: float, end: str, peers: Sequence[str]) -> None:
    """Hold what leaves by ``device`` to a rate; ``peers``: addresses (``end``: src or dst) that share it."""
    rate, root = f"{round(1e6 * mbit)}bit", ("replace", "dev", device, "root")
    if not peers:
        _run(*inside, "tc", "qdisc", *root, "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        return
    limits, add = ("ceil", rate, *_SHARED_BUCKET, *_QUANTUM), ("add", "dev", device)
    _run(*inside, "tc", "qdisc", *root, "handle", "1:", "htb", "default", "1")
    _run(*inside, "tc", "class", *add, "parent", "1:", "classid", "1:ffff", "htb", "rate", rate, *limits)
    for number, address in enumerate(peers, start=1):
        part = f"{round(1e6 * mbit / len(peers))}bit"
        _run(*inside, "tc", "class", *add, "parent", "1:ffff", "classid", f"1:{number:x}", "htb", "rate", part, *limits)
        match = ("protocol", "ip", "u32", "match", "ip", end, f"{address}/32", "flowid", f"1:{number:x}")
        _run(*inside, "tc", "filter", *add, "parent", "1:", *match)


def sweep() -> None:
    """Delete what processes left that were killed."""
    listed = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    listed += subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name, owner in set(re.findall(r"\b(cj(\d+)(?:br|[nv]\d+))\b", listed)):
        if not Path(f"/proc/{owner}").exists():
            _run("ip", *(("netns", "del") if re.search(r"n\d+$", name) else ("link", "del")), name, fail=False)


def _run(*words: str, fail: bool = True) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if fail and done.returncode:
        raise RuntimeError(f"`{' '.join(words)}`: {done.stderr.strip()}")
