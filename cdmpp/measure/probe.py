"""Numbers of a core that no document states, timed on this machine in some seconds: ``cdmpp data probe``.

A C program of a few loops is compiled and run. It tells the clock by a chain of integer additions, which take one cycle
on every x86-64 core, and with it what other chains and the levels of memory take.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cdmpp.devices.sheet import FIELDS, MEASURED
from cdmpp.errors import CdmppError
from cdmpp.measure.clock import c_compiler

_SOURCE = Path(__file__).with_suffix(".c")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_KIB = 1024


@dataclass(frozen=True)
class CoreProbe:
    """Each takes so many nanoseconds, the least of several visits; in the order that the C program prints them."""

    integer_add_ns: float
    float_add_ns: float
    zeroed_ns: float
    gather_lane_ns: float
    forward_ns: float
    """A store, and a load of its place that waits for it."""
    masked_forward_ns: float
    """The same of a masked store."""
    l2_byte_ns: float
    l3_byte_ns: float
    memory_byte_ns: float

    def spec(self) -> dict[str, float]:
        """Return fields of a device's ``spec``, in their units."""
        cycle = self.integer_add_ns
        return {
            "clock_mhz": round(1e3 / cycle),
            "issue_width": round(cycle / self.zeroed_ns),
            "gather_cycles_per_lane": _rounded(self.gather_lane_ns / cycle),
            "add_latency_cycles": round(self.float_add_ns / cycle),
            "l2_bytes_per_cycle": _rounded(cycle / self.l2_byte_ns),
            "l3_bytes_per_cycle": _rounded(cycle / self.l3_byte_ns),
            "core_gbps": _rounded(1 / self.memory_byte_ns),
        }

    def core_numbers(self) -> dict[str, float]:
        """Return fields of a core's ``numbers``."""
        cycle = self.integer_add_ns
        return {
            "forward_cycles": _rounded(self.forward_ns / cycle),
            "masked_forward_cycles": _rounded(self.masked_forward_ns / cycle),
        }

    def yaml(self) -> str:
        """Write lines for ``spec`` of a device file, and for ``numbers`` of a core's."""
        source = f'source: "{MEASURED}: cdmpp data probe"'
        groups = (
            ("of a device, conf/device", self.spec(), FIELDS["device"]),
            ("of a core, conf/core", self.core_numbers(), FIELDS["core"]),
        )
        lines = []
        for title, values, fields in groups:
            lines.append(f"# {title}")
            units = {name: fields[name]["unit"].replace("1", '"1"') for name in values}
            lines += [f"  {name}: {{value: {v:g}, unit: {units[name]}, {source}}}" for name, v in values.items()]
        return "\n".join(lines)


def probe() -> CoreProbe:
    """Compile and run the loops; ``CdmppError`` where this is no x86-64 with AVX2, or there is no C compiler."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise CdmppError(f"the probe is written for x86-64, this is {platform.machine()}; see conf/device/README.md")
    compiler = c_compiler()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        command = [compiler, "-O3", "-funroll-loops", "-mavx2", str(_SOURCE), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            raise CdmppError(f"{compiler} cannot build the probe: {built.stderr.strip()[-500:]}")
        ran = subprocess.run([program, *map(str, _buffers())], capture_output=True, text=True)
    if ran.returncode:
        raise CdmppError(f"the probe ended with code {ran.returncode}: does this CPU have AVX2?")
    return CoreProbe(*map(float, ran.stdout.split()))


def _buffers() -> tuple[int, int, int]:
    """Bytes of buffers that lie in the second-level cache, in the third, and in memory."""
    l1, l2, l3 = (cache_kib().get(level, typical) * _KIB for level, typical in ((1, 32), (2, 1024), (3, 32 * 1024)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A neighbour may hold most of the last level.
    in_l3 = min(max(3 * l2, l3 // 8), 3 * l3 // 4)
    return max(l2 // 2, 2 * l1), in_l3, min(max(4 * l3, 1 << 28), 1 << 30, memory // 4)


def cache_kib() -> dict[int, int]:
    """Map level to KiB of the data caches that the first processor reaches; empty where it is unknown."""
    found: dict[int, int] = {}
    for place in sorted(_CACHES.glob("index*")):
        try:
            kind, level, size = ((place / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[int(level)] = int(size[:-1])
    return found


def _rounded(value: float) -> float:
    """The value rounded to three digits."""
    return float(f"{value:.3g}") if math.isfinite(value) else value
