"""A network namespace a rank, joined by a bridge, each link held to a rate. Always deleted again. Needs root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    namespace: str
    address: str

    @property
    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]


def why_not() -> str | None:
    """Why no namespaces can be made here; None where they can."""
    if missing := [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with links(2, 1000):
            return None
    except RuntimeError as error:
        return str(error)


@contextmanager
def links(ranks: int, mbit: int) -> Iterator[tuple[Place, ...]]:
    """One place a rank; ``mbit`` Mbit/s out of each and into each, with a bucket of 32 KB so that little goes free.

    Raises:
        RuntimeError: what the kernel refused.
    """
    sweep()
    tag = f"cj{os.getpid()}"
    bridge = f"{tag}br"
    places = tuple(Place(f"{tag}n{rank}", f"10.77.0.{rank + 1}") for rank in range(ranks))
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for rank, place in enumerate(places):
            outer, inner = f"{tag}v{rank}", f"{tag}w{rank}"
            _run("ip", "netns", "add", place.namespace)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            _run("ip", "link", "set", inner, "netns", place.namespace, "name", "eth0")
            _run(*place.command, "ip", "addr", "add", f"{place.address}/24", "dev", "eth0")
            _run(*place.command, "ip", "link", "set", "lo", "up")
            _run(*place.command, "ip", "link", "set", "eth0", "up")
            rate = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "400ms")
            _run("tc", "qdisc", "add", "dev", outer, *rate)
            _run(*place.command, "tc", "qdisc", "add", "dev", "eth0", *rate)
        yield places
    finally:
        for rank, place in enumerate(places):
            _run("ip", "netns", "del", place.namespace, fail=False)
            _run("ip", "link", "del", f"{tag}v{rank}", fail=False)
        _run("ip", "link", "del", bridge, fail=False)


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
