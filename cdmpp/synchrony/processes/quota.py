"""CPU quotas: a control group for each process, which has a share of every period, before others, and no more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 5000
"""Length of a period, so short that a batch sees many of them; longer where the quota would be less than a ms."""
_MOUNTS = Path("/proc/mounts")
_LEAST_QUOTA_US = 1000  # the kernel's own limit
_MOST_WEIGHT = {True: "10000", False: "262144"}
"""The largest weight of a group, of version 2 or 1: a process has its share before others have the rest."""


@dataclass(frozen=True)
class Quota:
    """One control group: at most ``share`` of one core."""

    folder: Path
    share: float

    @property
    def times_us(self) -> tuple[int, int]:
        """The microseconds of CPU time in each period, and the period."""
        period_us = max(PERIOD_US, round(_LEAST_QUOTA_US / self.share))
        return max(_LEAST_QUOTA_US, round(self.share * period_us)), period_us

    def take(self, process: int) -> None:
        """Move a process with all its threads into the group."""
        (self.folder / "cgroup.procs").write_text(str(process))


def why_not() -> str | None:
    """Return why no CPU quota can be given here; None where one can."""
    try:
        with quotas([0.5]):
            return None
    except RuntimeError as error:
        return str(error)


@contextmanager
def quotas(shares: Sequence[float | None]) -> Iterator[tuple[Quota | None, ...]]:
    """Make a control group for each share of a core; None makes none. They are deleted again.

    Raises:
        RuntimeError: why the kernel gives no quota.
    """
    made: list[Quota | None] = []
    try:
        for number, share in enumerate(shares):
            made.append(None if share is None else _make(f"cdmpp-{os.getpid()}-{number}", share))
        yield tuple(made)
    finally:
        for quota in made:
            if quota is not None:
                _delete(quota.folder)


def _make(name: str, share: float) -> Quota:
    root, is_v2 = _controller()
    try:
        for left in root.glob("cdmpp-*-*"):
            if not Path(f"/proc/{left.name.split('-')[1]}").exists():
                _delete(left)
        quota = Quota(root / name, share)
        quota.folder.mkdir()
        quota_us, period_us = quota.times_us
        if is_v2:
            (quota.folder / "cpu.max").write_text(f"{quota_us} {period_us}")
            (quota.folder / "cpu.weight").write_text(_MOST_WEIGHT[is_v2])
        else:
            (quota.folder / "cpu.shares").write_text(_MOST_WEIGHT[is_v2])
            (quota.folder / "cpu.cfs_period_us").write_text(str(period_us))
            (quota.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError as error:
        with suppress(OSError):
            (root / name).rmdir()
        raise RuntimeError(f"CPU quotas: {error}; they need root and a writable control group") from None
    return quota


def _controller() -> tuple[Path, bool]:
    """Return the folder of the CPU controller and whether it is of version 2."""
    mounts = re.findall(r"^(\S+) (\S+) (cgroup2?) (\S+)", _MOUNTS.read_text(), re.M)
    for root in (Path(where) for _, where, kind, options in mounts if kind == "cgroup" and "cpu" in options.split(",")):
        return root, False
    held = ""
    for root in (Path(where) for _, where, kind, _ in mounts if kind == "cgroup2"):
        if "cpu" not in _words(root / "cgroup.controllers"):
            held = f"; {root} (version 2) has none"
            continue
        if "cpu" not in _words(root / "cgroup.subtree_control"):
            with suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+cpu")
        if "cpu" in _words(root / "cgroup.subtree_control"):
            return root, True
        held = (
            f"; {root} (version 2) has one, and the kernel gives it to no group inside, as where processes live in it"
        )
    raise RuntimeError(f"CPU quotas: no control group with a CPU controller is mounted for groups of our own{held}")


def _words(file: Path) -> list[str]:
    """The words of a file of the kernel; none where it cannot be read."""
    try:
        return file.read_text().split()
    except OSError:
        return []


def _delete(folder: Path) -> None:
    """Delete a group; the kernel keeps one for a moment after its last process ended."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
