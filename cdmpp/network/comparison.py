"""Comparison: one network on several devices. A device without an answer keeps its place, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UsageError, some
from cdmpp.network.predict import predict_network
from cdmpp.network.prediction import NetworkPrediction, best_level
from cdmpp.network.runtime import Runtime
from cdmpp.network.workload import Workload
from cdmpp.platform.files import plain
from cdmpp.platform.limits import check_once, checked


@dataclass(frozen=True)
class Answer:
    """This is the answer for one device."""

    device: str
    prediction: NetworkPrediction | None
    reason: str = ""
    """The reason for which there is no prediction; empty if there is one."""

    @property
    def by_datasheet(self) -> bool:
        """Return True if the model knows the device only by its datasheet."""
        return self.prediction is not None and self.prediction.by_datasheet

    def row(self) -> dict[str, Any]:
        """Return the numbers of this device, units in the names; None where there are none."""
        found = self.prediction
        latency = found.latency_s if found else None
        level = best_level(found.intervals) if found else None
        low, high = found.intervals[level] if found and level is not None else (None, None)
        batch = found.batch if found else 0
        bounds = {"interval_level": level, "interval_low_s": low, "interval_high_s": high}
        rates = {"throughput_per_s": latency, "throughput_low_per_s": high, "throughput_high_per_s": low}
        others = ("batch", "model", "schedule", "peak_bytes", "measured_s")
        return {
            "device": self.device,
            "latency_s": latency,
            "by_datasheet": self.by_datasheet,
            **bounds,
            **{name: batch / seconds if seconds else None for name, seconds in rates.items()},
            **{name: getattr(found, name) if found else None for name in others},
            "warnings": list(found.warnings) if found else [],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Comparison:
    """The answers are in the order in which the devices were given; at least one has a prediction."""

    answers: tuple[Answer, ...]

    @staticmethod
    def of(answers: Sequence[Answer]) -> Comparison:
        """Compare ``answers``; ``CdmppError`` where none has a prediction."""
        if not any(answer.prediction for answer in answers):
            reasons = {answer.reason for answer in answers}
            raise CdmppError(
                reasons.pop()
                if len(reasons) == 1
                else f"no device has an answer. {some([f'{answer.device}: {answer.reason}' for answer in answers])}"
            )
        return Comparison(tuple(answers))

    @property
    def network(self) -> str:
        """This is the name of the network."""
        return next(answer.prediction.network for answer in self.answers if answer.prediction)

    def table(self) -> list[dict[str, Any]]:
        """Return a row a device, fastest first, those without an answer last; units are in the names of the keys."""
        rows = [answer.row() for answer in self.answers]
        return sorted(rows, key=lambda row: (row["latency_s"] is None, row["latency_s"] or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON takes them."""
        return plain({"network": self.network, "devices": self.table()})


@checked()
def compare_devices(
    workload: Workload, devices: Sequence[str | Device], runtime: Runtime[Any], progress: bool = True
) -> Comparison:
    """Predict one workload on several devices.

    Args:
        workload: the network and how it runs.
        devices: names, or devices described in Python, each once.
        runtime: what runs the network on each of them.
        progress: whether bars are shown on stderr.

    Raises:
        UsageError: no device is given.
        CdmppError: none of the devices has an answer. Where one has, the others keep their reason.
    """
    names = [device if isinstance(device, str) else device.name for device in devices]
    check_once("devices", names)
    if not names:
        raise UsageError("no device to compare on: give the names of some, `cdmpp devices` lists them")
    answers = []
    for name, device in zip(names, devices, strict=True):
        try:
            answers.append(Answer(name, predict_network(workload, device, runtime, progress=progress)))
        except CdmppError as error:
            answers.append(Answer(name, None, str(error)))
    return Comparison.of(answers)
