"""FinetuneSettings: what ``scripts/finetune.py`` is asked for, in plain Python."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.sources import source_devices
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure.chosen import MeasureSettings
from cdmpp.model.build import config_from_dict
from cdmpp.recipes.candidates import FEATURE_KINDS
from cdmpp.recipes.fine_tune import TuneConfig
from cdmpp.training.config import TrainConfig
from cdmpp.training.sampling import SAMPLERS


@dataclass(frozen=True)
class FinetuneSettings:
    device: Device
    data_paths: tuple[Path, ...]
    sources: tuple[str, ...]
    """Empty: all others of the device's kind with records."""
    training: TrainConfig
    """Of the model of the sources, where ``start`` is None."""
    tuning: TuneConfig
    measure: MeasureSettings
    out: Path
    start: str | None = None
    budget: int = 30
    """Tasks."""
    sampler: str = "kmeans_most"
    sample_by: str = "hidden"
    paired: bool = False
    test_fraction: float = 0.2
    curve: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    samplers: tuple[str, ...] = ()
    docs: Path | None = None
    """Folder of RESULTS.md and results.json that a curve is written into, too."""
    seed: int = 0
    accelerator: str = "auto"
    progress: bool = True

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FinetuneSettings:
        """From the composed ``conf/finetune.yaml``.

        Raises:
            CdmppError: a key that nothing reads, an unknown device, sampler or way to measure, or no budget.
        """
        given = dict(values)
        groups = {name: dict(given.pop(name)) for name in ("model", "loss", "trainer")}
        measure = dict(given.pop("measure"))
        for key in ("out", "kit_folder"):
            measure[key] = Path(measure[key]) if measure.get(key) else None
        known = {field.name for field in fields(MeasureSettings)}
        if measure["out"] is None:
            raise CdmppError("measure.out must name the folder that new records go to")
        if unknown := sorted(set(measure) - known):
            raise CdmppError(f"unknown setting measure.{unknown[0]}; known: {', '.join(sorted(known))}")
        given |= {
            "device": devices.get(given["device"]["name"]),
            "data_paths": tuple(Path(path).expanduser() for path in given.pop("data")["path"]),
            "sources": tuple(devices.get(name).name for name in given["sources"] or ()),
            "training": TrainConfig.from_dict(groups),
            "tuning": config_from_dict(given["tuning"], TuneConfig, "tuning"),
            "measure": MeasureSettings(**measure),
            "out": Path(given["out"]),
            "docs": Path(given["docs"]) if given.get("docs") else None,
            "curve": tuple(given["curve"] or ()),
            "seeds": tuple(given["seeds"]),
            "samplers": tuple(given["samplers"]),
        }
        names = {field.name for field in fields(FinetuneSettings)}
        if unknown := sorted(set(given) - names):
            raise CdmppError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(names))}")
        settings = FinetuneSettings(**given)
        settings.check()
        return settings

    def check(self) -> None:
        for sampler in (self.sampler, *self.samplers):
            if sampler not in SAMPLERS:
                near = difflib.get_close_matches(sampler, SAMPLERS, n=1) or list(SAMPLERS)
                raise CdmppError(f"unknown sampler {sampler!r}; did you mean {', '.join(near)}?")
        if self.sample_by not in FEATURE_KINDS:
            raise CdmppError(f"sample_by={self.sample_by!r} is unknown; one of {', '.join(FEATURE_KINDS)}")
        if min((self.budget, *self.curve)) < 1:
            raise CdmppError("budget and curve count tasks: at least 1 each")
        if self.device.name in self.sources:
            raise CdmppError(f"{self.device.name} is the new device and cannot be among its own sources")
        if self.curve and not (self.seeds and self.samplers):
            raise CdmppError("a curve needs at least one of seeds and of samplers")

    def source_names(self) -> list[str]:
        """The devices to start from; ``DataError`` where none has records."""
        names = list(self.sources) or source_devices(self.device.name, self.data_paths)
        if not names:
            raise DataError(
                f"no other device has records within reach, so there is nothing to fine-tune to {self.device.name} "
                "from; train on its own records (scripts/train.py), or add data (data.path, $CDMPP_DATA)"
            )
        return names
