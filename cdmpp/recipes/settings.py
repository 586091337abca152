"""RunSettings: one training run as ``scripts/train.py`` is asked for it, in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.files import read_json, write_json
from cdmpp.data.sources import load_device, load_devices, source_devices
from cdmpp.data.splits import split_definition
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.training.config import TrainConfig
from cdmpp.training.processes import is_first, one_writer
from cdmpp.training.run_folder import RUN_FILE

_SETTINGS = "settings.json"
_PLAIN = ("out", "resume", "features", "seed", "accelerator", "progress", "baselines", "plots", "threads")
_OF_NO_EFFECT = ("out", "progress", "accelerator", "baselines", "plots", "threads", "allow_zero_shot")
"""On what a run learns: it may go on with others."""
_DOMAIN = ("target", "sources", "allow_zero_shot")
_GROUPS = ("device", "data", "split", "model", "loss", "trainer")


@dataclass(frozen=True)
class RunSettings:
    device: Device
    """Whose records are learned from; with ``target``, that one."""
    data_paths: tuple[Path, ...]
    """Folders searched for records of the device, besides those in ``$CDMPP_DATA``."""
    split: Mapping[str, Any]
    """``name`` and options of ``make_split``."""
    training: TrainConfig
    out: Path
    target: str | None = None
    """Device to test on; the model learns from ``sources``."""
    sources: tuple[str, ...] = ()
    """Devices to learn from. Empty: ``device`` alone, or with ``target`` all others of its kind within reach."""
    allow_zero_shot: str = "auto"
    """Without records of ``device`` train on other devices instead of stopping: true, false, or auto, which is true
    for devices without public records."""
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
        known = (*_GROUPS, *_PLAIN, *_DOMAIN)
        if unknown := sorted(set(values) - set(known)):
            raise CdmppError(f"unknown settings {', '.join(unknown)}; known: {', '.join(known)}")
        data = dict(values["data"])
        paths = tuple(Path(path) for path in data.pop("path"))
        if data:
            raise CdmppError(f"unknown settings {', '.join('data.' + key for key in data)}; known: data.path")
        target, sources = values.get("target"), tuple(values.get("sources") or ())
        split = _split(values["split"], target, sources)
        target = target or split.get("target")
        return RunSettings(
            device=devices.get(target or values["device"]["name"]),
            data_paths=paths,
            split=split,
            training=TrainConfig.from_dict(_groups(values)),
            out=Path(values["out"]),
            target=target,
            sources=tuple(devices.get(name).name for name in sources),
            allow_zero_shot=_zero_shot(values.get("allow_zero_shot", "auto")),
            features=values["features"],
            seed=int(values["seed"]),
            accelerator=values["accelerator"],
            progress=bool(values["progress"]),
            baselines=tuple(values["baselines"] or ()),
            plots=bool(values["plots"]),
            threads=int(values["threads"]),
            raw={key: value for key, value in values.items() if key != "resume"},
        )

    @property
    def title(self) -> str:
        """What the run is about, in a few words."""
        if self.target:
            return f"{self.target} from {'+'.join(self.sources) or 'all others'}"
        return "+".join(self.sources) or self.device.name

    def load(self) -> LatencyDataset:
        """The programs of every device the run is about; ``NoRecordsError`` where one of them has none."""
        names = list(self.sources)
        if self.target:
            names = names or source_devices(self.target, self.data_paths, self.features)
            if not names:
                raise DataError(f"target={self.target}: no other device has records within reach to learn from")
            names.append(self.target)
        if names:
            return load_devices(names, self.data_paths, features=self.features)
        return load_device(self.device.name, self.data_paths, features=self.features)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold ``out`` and keep the settings there, so that ``resume=<out>`` needs nothing else.

        Raises:
            CdmppError: another run writes there, or one with other settings began there.
        """
        path = self.out / _SETTINGS
        with one_writer(self.out):
            if is_first():
                mine = json.loads(json.dumps(dict(self.raw)))
                found = read_json(path) if path.is_file() else mine
                differing = [key for key in mine if key not in _OF_NO_EFFECT and found.get(key) != mine[key]]
                if differing and (self.out / RUN_FILE).is_file():
                    raise CdmppError(
                        f"{self.out} holds a run with another {' and '.join(differing)}; choose another out= folder, "
                        f"delete this one to start over, or go on with it by resume={self.out}"
                    )
                write_json(path, mine)
            yield


def _zero_shot(value: Any) -> str:
    text = str(value).lower()
    if text not in ("auto", "true", "false"):
        raise CdmppError(f"allow_zero_shot is {value!r}; one of auto, true, false")
    return text


def _split(values: Mapping[str, Any], target: str | None, sources: tuple[str, ...]) -> dict[str, Any]:
    """Options of the split; one by device gets its target and sources from the run."""
    split = dict(values)
    by_device = split.get("kind", split_definition(split["name"]).get("kind")) == "by_device"
    if by_device:
        target = target or split.get("target")
        if target is None:
            raise CdmppError(
                "a split by device needs target=DEVICE, the device to test on (`cdmpp devices` lists them)"
            )
        split |= {"target": devices.get(target).name, "sources": list(sources or split.get("sources") or ()) or None}
    elif target:
        raise CdmppError(f"target={target} goes with a split by device: experiment=cross_device or split=by_device")
    return split


def _groups(values: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of ``TrainConfig``. Imported vectors describe no kernel: there is no analytic time to start from.

    Raises:
        CdmppError: a model that reads loops one by one is to be trained on vectors that do not list them.
    """
    groups = {name: dict(values[name]) for name in ("model", "loss", "trainer")}
    if values["features"] != "cdmpp" and "anchor" in groups["model"]:
        groups["model"]["anchor"] = False
        if groups["model"].get("loops", "flat") != "flat":
            raise CdmppError(f"model.loops=sequence needs features=cdmpp; {values['features']} vectors list no loops")
    return groups
