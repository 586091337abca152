"""Datasheet numbers that no document states, timed on this machine: ``python -m cdmpp.measure.probe --clock-mhz 2300``.

A C program of a few loops is compiled and run. It tells the clock by a chain of integer additions, which take one cycle
on every x86-64 core, and with it what a chain of float additions takes, a vector gather from L1, and a row of
zeroed registers, which need nothing but a slot of the issue width.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import CdmppError

_SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class CoreProbe:
    """Nanoseconds of one each, the least of seven visits; in the order that the C program prints them."""

    integer_add_ns: float
    float_add_ns: float
    zeroed_ns: float
    gather_lane_ns: float

    @property
    def running_mhz(self) -> float:
        """The clock that the core really had."""
        return 1e3 / self.integer_add_ns

    @property
    def add_latency_cycles(self) -> float:
        """From one dependent float addition to the next."""
        return self.float_add_ns / self.integer_add_ns

    @property
    def issue_width(self) -> float:
        """Instructions that the core can start in a cycle."""
        return self.integer_add_ns / self.zeroed_ns

    def gather_cycles_per_lane(self, clock_mhz: float) -> float:
        """In cycles of ``clock_mhz``, the clock of the datasheet."""
        return self.gather_lane_ns * clock_mhz / 1e3

    def yaml(self, clock_mhz: float) -> str:
        """Lines for ``spec`` of a device file."""
        source = 'source: "derived: timed by python -m cdmpp.measure.probe"'
        values = (
            ("issue_width", round(self.issue_width), '"1"'),
            ("gather_cycles_per_lane", round(self.gather_cycles_per_lane(clock_mhz), 2), "cycle"),
            ("add_latency_cycles", round(self.add_latency_cycles), "cycle"),
        )
        return "\n".join(f"  {name}: {{value: {value}, unit: {unit}, {source}}}" for name, value, unit in values)


def probe() -> CoreProbe:
    """Compile and run the loops; ``CdmppError`` where this is no x86-64 with AVX2, or there is no C compiler."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise CdmppError(f"the probe is written for x86-64, this is {platform.machine()}; see conf/device/README.md")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CdmppError("the probe needs a C compiler (cc, gcc or clang) on the path")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        command = [compiler, "-O2", "-mavx2", str(_SOURCE), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            raise CdmppError(f"{compiler} cannot build the probe: {built.stderr.strip()[-500:]}")
        ran = subprocess.run([program], capture_output=True, text=True)
    if ran.returncode:
        raise CdmppError(f"the probe ended with code {ran.returncode}: does this CPU have AVX2?")
    return CoreProbe(*map(float, ran.stdout.split()))


def main() -> None:
    """Print what was timed, as lines of a device file."""
    parser = argparse.ArgumentParser(prog="python -m cdmpp.measure.probe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clock-mhz", type=float, required=True, help="clock_mhz of the device file, its base clock")
    options = parser.parse_args()
    core = probe()
    print(f"# the core ran at {core.running_mhz:.0f} MHz; a gather takes {core.gather_lane_ns:.3f} ns a lane")
    print(core.yaml(options.clock_mhz))


if __name__ == "__main__":
    try:
        main()
    except CdmppError as error:
        raise SystemExit(f"error: {error}") from None
