"""RunSettings: one training run as ``scripts/train.py`` is asked for it, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.files import read_json, write_json
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.training.config import TrainConfig

_SETTINGS = "settings.json"
_PLAIN = ("out", "resume", "features", "seed", "accelerator", "progress", "baselines", "plots", "threads")
_GROUPS = ("device", "data", "split", "model", "loss", "trainer")


@dataclass(frozen=True)
class RunSettings:
    device: Device
    data_paths: tuple[Path, ...]
    """Folders searched for records of the device, besides those in ``$CDMPP_DATA``."""
    split: Mapping[str, Any]
    """``name`` and options of ``make_split``."""
    training: TrainConfig
    out: Path
    features: str = "cdmpp"
    """Kind of leaf vectors to learn from, see ``layout.FEATURES``."""
    seed: int = 0
    accelerator: str = "auto"
    progress: bool = True
    baselines: tuple[str, ...] = ()
    """Fitted on the same split and shown beside the model."""
    plots: bool = True
    threads: int = 2
    """For baselines and for deriving compact ASTs."""
    raw: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RunSettings:
        """From a composed configuration; with ``resume`` set, from the settings kept in that folder.

        Raises:
            CdmppError: a key that nothing reads, a missing one, or a folder that holds no run.
        """
        if values.get("resume"):
            folder = Path(values["resume"])
            if not (folder / _SETTINGS).is_file():
                raise CdmppError(f"resume={folder}: no {_SETTINGS} there, so it is not the folder of a training run")
            values = {**read_json(folder / _SETTINGS), "out": str(folder)}
        unknown = sorted(set(values) - {*_PLAIN, *_GROUPS})
        if unknown:
            raise CdmppError(f"unknown settings {', '.join(unknown)}; known: {', '.join((*_GROUPS, *_PLAIN))}")
        data = dict(values["data"])
        paths = tuple(Path(path) for path in data.pop("path"))
        if data:
            raise CdmppError(f"unknown settings {', '.join('data.' + key for key in data)}; known: data.path")
        return RunSettings(
            device=devices.get(values["device"]["name"]),
            data_paths=paths,
            split=dict(values["split"]),
            training=TrainConfig.from_dict(_groups(values)),
            out=Path(values["out"]),
            features=values["features"],
            seed=int(values["seed"]),
            accelerator=values["accelerator"],
            progress=bool(values["progress"]),
            baselines=tuple(values["baselines"] or ()),
            plots=bool(values["plots"]),
            threads=int(values["threads"]),
            raw={key: value for key, value in values.items() if key != "resume"},
        )

    def keep(self) -> None:
        """Write them into ``out``, so that ``resume=<out>`` needs nothing else."""
        write_json(self.out / _SETTINGS, dict(self.raw))


def _groups(values: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of ``TrainConfig``. Imported vectors describe no kernel: there is no analytic time to start from."""
    groups = {name: dict(values[name]) for name in ("model", "loss", "trainer")}
    if values["features"] != "cdmpp" and "anchor" in groups["model"]:
        groups["model"]["anchor"] = False
    return groups
