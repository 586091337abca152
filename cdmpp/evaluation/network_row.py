"""A row of results a network, batch, schedule and model: what tables and published files are made of."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.evaluation.networks import NetworkCell
from cdmpp.network.interval import NetworkErrors
from cdmpp.platform.files import write_text
from cdmpp.programs.task import network_family


@dataclass(frozen=True)
class NetworkRow:
    """Errors are shares of the measured time; the last three add up to that of the replay."""

    device: str
    model: str
    schedule: str
    network: str
    batch: int
    held_out: bool
    """None of its tasks was trained on."""
    calls: int
    measured_s: float
    predicted_s: float
    eager_pytorch_s: float | None
    planned_bytes: int
    activation_bytes: int
    replay_error: float
    without_cold_error: float
    sum_error: float
    kernels_error: float
    cold_error: float
    overhead_error: float

    @staticmethod
    def of(cell: NetworkCell, device: Device) -> NetworkRow:
        """Make the row of a cell on ``device``, with its launch overheads."""
        errors = cell.errors(device)
        return NetworkRow(
            cell.device, cell.model, cell.schedule, cell.network, cell.batch, cell.held_out, len(cell.calls),
            cell.measured_s, cell.measured_s * (1 + errors["replay"]), cell.eager_s, cell.planned_bytes,
            cell.activation_bytes, *(errors[name] for name in ERRORS),
        )  # fmt: skip

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Return device, model, schedule, network and batch: what it is a row of."""
        return self.device, self.model, self.schedule, self.network, self.batch

    @property
    def times_eager(self) -> float | None:
        """Return the measured time over that of eager PyTorch."""
        return self.measured_s / self.eager_pytorch_s if self.eager_pytorch_s else None


ERRORS = tuple(entry.name.removesuffix("_error") for entry in fields(NetworkRow) if entry.name.endswith("_error"))


def write_rows(path: Path, rows: Iterable[NetworkRow]) -> None:
    """Write a table with six digits."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [entry.name for entry in fields(NetworkRow)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text(path, stream.getvalue())


def read_rows(path: Path) -> list[NetworkRow]:
    """Read the rows of a table that ``write_rows`` wrote; ``DataError`` where it is none."""
    try:
        with path.open(newline="") as file:
            return [
                NetworkRow(**{name: _PARSED[name](text) for name, text in row.items()}) for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no table of measured networks ({error})") from error


def _truth(text: str) -> bool:
    return {"True": True, "False": False}[text]


def _optional_number(text: str) -> float | None:
    return float(text) if text else None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "bool": _truth,
    "float": float,
    "float | None": _optional_number,
}
_PARSED = {entry.name: _PARSERS[str(entry.type)] for entry in fields(NetworkRow)}


def summary(rows: Sequence[NetworkRow]) -> list[dict[str, Any]]:
    """Sum up each device, schedule, model and side (held out or not): errors in percent, parts, ratio to eager."""
    lines = []
    for group in sorted({(row.device, row.schedule, row.model, row.held_out) for row in rows}):
        own = [row for row in rows if (row.device, row.schedule, row.model, row.held_out) == group]
        line: dict[str, Any] = dict(zip(("device", "schedule", "model", "held_out"), group, strict=True))
        line["networks"] = len(own)
        for name in ERRORS:
            line[f"{name}_percent"] = 100 * float(np.mean([abs(getattr(row, f"{name}_error")) for row in own]))
        line["worst_percent"] = 100 * max(abs(row.replay_error) for row in own)
        line["bias_percent"] = 100 * float(np.mean([row.replay_error for row in own]))
        ratios = [row.times_eager for row in own if row.times_eager]
        line["times_eager"] = float(np.exp(np.mean(np.log(ratios)))) if ratios else None
        line["memory_ratio"] = float(np.median([row.planned_bytes / row.activation_bytes for row in own]))
        lines.append(line)
    return lines


def network_errors(rows: Iterable[NetworkRow]) -> dict[str, Any]:
    """Map device -> model -> kind of schedule -> network to log(measured / predicted), for ``network.interval``.

    Of several batches or shapes of one network the worst counts: they err together.
    """
    found: dict[str, Any] = {}
    for row in rows:
        kind = row.schedule.partition(":")[0]
        logs = found.setdefault(row.device, {}).setdefault(row.model, {}).setdefault(kind, {})
        error, family = round(math.log(row.measured_s / row.predicted_s), 5), network_family(row.network)
        if abs(error) >= abs(logs.get(family, 0.0)):
            logs[family] = error
    return found


def coverage(errors: Mapping[str, float], level: float) -> float | None:
    """Return the share of networks inside the interval that the others make; None where these are too few."""
    inside = []
    for name, error in errors.items():
        others = NetworkErrors({key: value for key, value in errors.items() if key != name})
        if (factor := others.factor(level)) is None:
            return None
        inside.append(abs(error) <= np.log(factor))
    return float(np.mean(inside)) if inside else None
