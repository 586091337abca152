"""FinetuneSettings: what ``cdmpp model finetune`` is asked for, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.sources import devices_with_data, source_devices
from cdmpp.data.splits import split_definition, split_names
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure.chosen import LabelSettings
from cdmpp.model.config import check_keys, config_from_dict
from cdmpp.platform.limits import Limits, fitting, fitting_values, numbers
from cdmpp.predict.model_folder import load
from cdmpp.recipes.compose import offer
from cdmpp.recipes.settings import shared_settings
from cdmpp.training.config import Run, TrainConfig, TuneConfig
from cdmpp.training.sampling import check_sampler

_OWN = ("start", "budget", "sampler", "paired", "test_fraction")
_HINTS = {"start": str | None, "budget": int, "sampler": str, "paired": bool, "test_fraction": float}
_LIMITS = {"budget": Limits(1, 10**6, "tasks"), "test_fraction": numbers(0, 0.99, "of the tasks", above=True)}
_SHARED = ("data", "sources", "model", "loss", "trainer", "out", "seed", "progress", "accelerator")
_KEYS = (*_OWN, *_SHARED, "device", "test_networks", "tuning", "measure")

offer(LabelSettings, "labels", "measure")


@dataclass(frozen=True)
class FinetuneSettings:
    """``conf/finetune.yaml`` explains the fields and has their defaults."""

    device: Device
    data_paths: tuple[Path, ...]
    sources: tuple[str, ...]
    """Empty: all others of the device's kind with records."""
    training: TrainConfig
    """Settings of the model of the sources, where ``start`` is None."""
    tuning: TuneConfig
    measure: LabelSettings
    run: Run
    start: str | None
    budget: int
    sampler: str
    paired: bool
    test_fraction: float
    test_networks: tuple[str, ...]
    """Empty: the test is ``test_fraction`` of the tasks."""

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FinetuneSettings:
        """Read the composed ``conf/finetune.yaml``; ``CdmppError`` for what nothing reads or cannot be."""
        check_keys(values, _KEYS)
        own = {key: values[key] for key in _OWN}
        fitting_values(own, _HINTS, _LIMITS)
        check_keys(values["measure"], [field.name for field in fields(LabelSettings)], "measure.")
        settings = FinetuneSettings(
            device=devices.get(devices.named(values["device"])),
            tuning=config_from_dict(TuneConfig, values["tuning"], "tuning"),
            measure=LabelSettings(**values["measure"]),
            test_networks=_networks(values["test_networks"]),
            **own,
            **shared_settings(values),
        )
        check_sampler(settings.sampler)
        if settings.device.name in settings.sources:
            raise CdmppError(f"{settings.device.name} is the new device and cannot be among its own sources")
        return settings

    def source_names(self) -> list[str]:
        """Return devices to start from: of a given ``start`` those it knows; ``DataError``: none has records."""
        if self.sources:
            return list(self.sources)
        names = source_devices(self.device.name, self.data_paths)
        if self.start is not None:
            known = load(self.start).trained_on
            names = [name for name in devices_with_data(self.data_paths) if name in known and name != self.device.name]
            if not names:
                raise DataError(
                    f"{self.start} has learned from {', '.join(sorted(known))}, and no record of these is in reach, "
                    "so what it knows could not be kept: add their data (data.path, $CDMPP_DATA), or name sources"
                )
        if names:
            return names
        raise DataError(
            f"no other device has records within reach, so there is nothing to fine-tune to {self.device.name} from; "
            "train on its own records (cdmpp model train), or add data (data.path, $CDMPP_DATA)"
        )


def _networks(value: Any) -> tuple[str, ...]:
    """A list of names as it is given, or that of the split of ``conf/split`` that is named."""
    named = isinstance(value, str) and value in split_names()
    listed = split_definition(value).get("test_networks") if named else () if value is None else value
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        lists = [name for name in split_names() if split_definition(name).get("test_networks")]
        raise CdmppError(
            f"test_networks={value}: it is a list of networks, such as [gpt2,bert_tiny], or the name of a split that "
            f"lists some: {', '.join(lists)}"
        )
    return tuple(fitting("test_networks", listed, list[str]))
