"""LaunchOverheads: what a device takes for a network apart from its kernels. Imports neither TVM nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.devices.sheet import read_quantity
from cdmpp.errors import CdmppError

_NUMBERS = {"call_us": "us", "run_us": "us", "exposed_share": "1", "resident_kb": "KiB"}


@dataclass(frozen=True)
class LaunchOverheads:
    """These are the overheads of one device; None where nobody has measured one."""

    call_s: float | None = None
    """Seconds from the end of a kernel to the start of the next one on the same stream, and before the first."""
    run_s: float | None = None
    """Seconds that a run of a network takes once."""
    exposed_share: float | None = None
    """Share, 0 to 1, that a kernel does not hide of the time to fetch its data from where it lies in a network; one
    that is timed alone finds it in the cache."""
    resident_bytes: float | None = None
    """Bytes of the last cache that a network has to itself; other guests of a shared host use the rest. None: all."""
    streams: int = 1
    """Queues of each engine that run side by side."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Engine -> op classes that run there; those of none run on the last. Empty: one engine for all."""

    def engine_of(self, op_class: str) -> str:
        """Return the name of the engine."""
        named = (name for name, classes in self.classes.items() if op_class in classes)
        return next(named, [*self.classes][-1] if self.classes else "device")


def read_launch_overheads(path: Path, content: Any, documents: Mapping[str, Any]) -> LaunchOverheads:
    """Read the part ``network`` of a device file; ``CdmppError`` names the field that cannot be."""
    if content is None:
        return LaunchOverheads()
    known = {*_NUMBERS, "streams", "engines"}
    if not isinstance(content, dict) or not set(content) <= known:
        raise CdmppError(f"{path}: network must be a mapping of {', '.join(sorted(known))}, found {content!r}")
    numbers = {
        name: read_quantity(path, f"network.{name}", content[name], unit, documents).value
        for name, unit in _NUMBERS.items()
        if name in content
    }
    streams, engines = content.get("streams", 1), content.get("engines", {})
    if not isinstance(streams, int) or streams < 1:
        raise CdmppError(f"{path}: network.streams is {streams!r}: give a number of at least 1")
    if not isinstance(engines, dict) or not all(isinstance(classes, list) for classes in engines.values()):
        raise CdmppError(f"{path}: network.engines is {engines!r}: give the op classes of each engine as a list")
    call_us, run_us, resident_kb = (numbers.get(name) for name in ("call_us", "run_us", "resident_kb"))
    return LaunchOverheads(
        None if call_us is None else 1e-6 * call_us,
        None if run_us is None else 1e-6 * run_us,
        numbers.get("exposed_share"),
        None if resident_kb is None else 1024 * resident_kb,
        streams,
        {str(name): tuple(map(str, classes)) for name, classes in engines.items()},
    )
