"""Record: one measured program on one device. The Parquet columns carry the same names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Record:
    """A record is one measured program on one device."""

    record_id: str
    """16 hex digits over (task_id, device, target, schedule): identical programs share it."""
    task_id: str
    device: str
    """Name of a ``conf/device/*.yaml``."""
    target: str
    """JSON of the TVM target."""
    schedule: str
    """JSON of the MetaSchedule trace: ``[instructions, decisions]``. Where none is known, TVMScript of the scheduled
    program itself."""
    latency_samples_s: tuple[float, ...]
    """Every kept repeat, seconds, in measuring order (visits one after the other)."""
    latency_s: float
    """The label: minimum over visits for our own measurements, median for imported ones (see ``statistic``)."""
    statistic: str = "min"
    latency_min_s: float = 0.0
    latency_median_s: float = 0.0
    spread: float = 0.0
    """Relative difference of the best two visits (own data) or relative std of merged repeats (imports)."""
    n_merged: int = 1
    """Number of identical programs merged into this record."""
    flagged: bool = False
    """True where visits differ by more than 5 %."""
    protocol: str = ""
    """Protocol id, e.g. ``cpu-v1`` or ``metaschedule``."""
    software: str = ""
    """JSON: tvm, tvm-ffi, llvm, python, kernel versions."""
    host: str = ""
    measured_at: str = ""
    """ISO-8601 UTC."""
    extra: dict[str, str] = field(default_factory=dict)
