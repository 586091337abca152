"""RunSettings: one training run as ``cdmpp model train`` is asked for it, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.ast.layout import FEATURES
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_devices, source_devices
from cdmpp.data.splits import check_split, split_definition
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.model.config import check_keys
from cdmpp.model.old_names import current_names
from cdmpp.platform.files import read_json, write_json
from cdmpp.platform.limits import PROCESSES, SEED, check_choice, fitting, fitting_values
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.processes import is_rank_zero, one_writer
from cdmpp.training.run_folder import RUN_FILE

_SETTINGS = "settings.json"
OF_NO_EFFECT = ("out", "progress", "accelerator", "baselines", "plots", "threads", "allow_zero_shot", "leave_one_out")
"""On what a run learns: it may go on with others."""
_HINTS: dict[str, Any] = {
    "target": str | None,
    "sources": list[str] | None,
    "features": str,
    "seed": int,
    "out": str,
    "progress": bool,
    "accelerator": str,
    "baselines": list[str] | None,
    "plots": bool,
    "threads": int,
    "leave_one_out": bool,
}
"""Type of each setting that is in no group."""
_LIMITS = {"seed": SEED, "threads": PROCESSES}
_GROUPS = ("device", "data", "split", "model", "loss", "trainer")
_NEEDED = (
    *_GROUPS,
    *(
        "accelerator",
        "allow_zero_shot",
        "baselines",
        "features",
        "out",
        "plots",
        "progress",
        "seed",
        "sources",
        "target",
    ),
    "threads",
)
_KEYS = (*_GROUPS, *OF_NO_EFFECT, "target", "sources", "resume", "features", "seed")


@dataclass(frozen=True)
class RunSettings:
    """``conf/config.yaml`` explains the fields and has their defaults."""

    device: Device
    data_paths: tuple[Path, ...]
    split: Mapping[str, Any]
    training: TrainConfig
    run: Run
    target: str | None
    sources: tuple[str, ...]
    """Empty: ``device`` alone, or with ``target`` all others of its kind within reach."""
    allow_zero_shot: str
    leave_one_out: bool
    features: str
    baselines: tuple[str, ...]
    plots: bool
    threads: int
    values: Mapping[str, Any]

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RunSettings:
        """Read a composed configuration, or the settings kept in ``resume``; ``CdmppError`` for what cannot be."""
        if (resumed := fitting("resume", values.get("resume"), str | None)) is not None:
            folder = Path(resumed)
            if not (folder / _SETTINGS).is_file():
                raise CdmppError(f"resume={folder}: no {_SETTINGS} there, so it is not the folder of a training run")
            values = {**fitting(str(folder / _SETTINGS), read_json(folder / _SETTINGS), dict), "out": str(folder)}
            if missing := [key for key in _NEEDED if key not in values]:
                raise CdmppError(f"{folder / _SETTINGS} lacks {', '.join(missing)}: not the settings of a training run")
        check_keys(values, _KEYS)
        model = current_names(fitting("model", values["model"], dict))
        if values["features"] != "cdmpp" and "prior" in model:
            model = {**model, "prior": False}  # imported vectors describe no kernel: there is no analytic time
        shared = shared_settings({**values, "model": model})
        split = _split(values["split"], values["target"], shared["sources"])
        fitting_values({key: value for key, value in values.items() if key in _HINTS}, _HINTS, _LIMITS)
        check_choice("features", values["features"], tuple(FEATURES))
        zero_shot = str(values["allow_zero_shot"]).lower()
        check_choice("allow_zero_shot", zero_shot, ("auto", "true", "false"))
        leave_one_out = values.get("leave_one_out", True)  # runs to resume may be older than this setting
        named = devices.named(values["device"])
        return RunSettings(
            device=devices.get(split.get("target") or named),
            split=split,
            target=split.get("target"),
            allow_zero_shot=zero_shot,
            leave_one_out=leave_one_out,
            baselines=tuple(values["baselines"] or ()),
            values={key: value for key, value in values.items() if key != "resume"},
            **{key: values[key] for key in ("features", "plots", "threads")},
            **shared,
        )

    @property
    def title(self) -> str:
        """Name the subject of the run in a few words."""
        if self.target:
            return f"{self.target} from {'+'.join(self.sources) or 'all others'}"
        return "+".join(self.sources) or self.device.name

    def load(self) -> LatencyDataset:
        """Load programs of every device that the run is about; ``NoRecordsError`` where one has none."""
        names = list(self.sources)
        if self.target and not names and not (names := source_devices(self.target, self.data_paths, self.features)):
            raise DataError(f"target={self.target}: no other device has records within reach to learn from")
        if self.target or not names:
            names.append(self.device.name)
        return load_devices(names, self.data_paths, features=self.features)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the folder of the run, if no other began there, and keep the settings for ``resume=<out>``."""
        out = self.run.out
        with one_writer(out):
            if is_rank_zero():
                values = dict(self.values)
                before = read_json(out / _SETTINGS) if (out / _SETTINGS).is_file() else values
                differing = [key for key in values if key not in OF_NO_EFFECT and before.get(key) != values[key]]
                if differing and (out / RUN_FILE).is_file():
                    raise CdmppError(
                        f"{out} holds a run with another {' and '.join(differing)}; choose another out= folder, "
                        f"delete this one to start over, or go on with it by resume={out}"
                    )
                write_json(out / _SETTINGS, values)
            yield


def shared_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of both training and fine-tuning; ``CdmppError`` where one cannot be."""
    fitting_values({key: value for key, value in values.items() if key in _HINTS}, _HINTS, _LIMITS)
    check_choice("accelerator", values["accelerator"], ("auto", "cpu", "gpu"))
    return {
        "data_paths": data_paths(values["data"]),
        "sources": tuple(devices.get(name).name for name in values["sources"] or ()),
        "training": TrainConfig.from_dict({name: values[name] for name in ("model", "loss", "trainer")}),
        "run": Run(Path(values["out"]), values["seed"], values["progress"], values["accelerator"]),
    }


def data_paths(values: Any) -> tuple[Path, ...]:
    """Return the folders of the group ``data``; ``CdmppError`` where it is none of ``conf/data``."""
    check_keys(fitting("data", values, dict), ("path",), "data.")
    return tuple(Path(path).expanduser() for path in fitting("data.path", values["path"], list[str]))


def _split(values: Mapping[str, Any], target: str | None, sources: tuple[str, ...]) -> dict[str, Any]:
    """Options of the split; one by device gets its target and sources from the run."""
    split = dict(fitting("split", values, dict))
    fitting("split.name", split.get("name"), str)
    check_split(split_definition(split["name"]) | split)
    if split.get("kind", split_definition(split["name"]).get("kind")) == "by_device":
        if target and split.get("target") not in (None, target):
            raise CdmppError(f"target={target} and split.target={split['target']}: give one of them")
        target = target or split.get("target")
        if target is None:
            raise CdmppError("a split by device needs target=DEVICE, the one to test on (`cdmpp devices` lists them)")
        split |= {"target": devices.get(target).name, "sources": list(sources or split.get("sources") or ()) or None}
    elif target:
        raise CdmppError(f"target={target} goes with a split by device: experiment=cross_device or split=by_device")
    return split
