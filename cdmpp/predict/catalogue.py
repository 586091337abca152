"""The trained models at hand: shipped ones, those in ``models/``, and what ``train.py`` left. Opens no weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.devices import Device
from cdmpp.errors import ModelFormatError
from cdmpp.machine_code.cpu.compile import can_have_code, can_have_gpu_code
from cdmpp.predict.stored_config import CARD, CONFIG, WEIGHTS, other_version, read_config, read_object

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "pretrained"
"""Models that come with the package."""
_PATTERNS = ("models/*/config.json", "outputs/*/*/model/config.json")  # outputs/<device>/<time>/model: train.py
_METRICS = ("mape", "median_ape", "spearman_within_task", "top1_regret")


@dataclass(frozen=True)
class ModelEntry:
    """This is a model folder as its two JSON files describe it."""

    name: str
    """The name that ``cdmpp.load_model`` takes: the plain one of a shipped model, else a path."""
    folder: Path
    devices: tuple[str, ...]
    zero_shot: tuple[str, ...] = ()
    """Devices it was made for without a record of them."""
    features: str = "cdmpp"
    """Kind of programs, a name in ``layout.FEATURES``: ``library`` of framework operators."""
    tells_unseen: bool = False
    """True if it knows the error to expect on CPUs that it never saw."""
    state: str = "usable"
    """``usable``, ``another version`` or ``damaged``."""
    problem: str = ""
    """The reason why it cannot be used, in a sentence that names the file."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """The content of its card; empty where it cannot be read."""

    @property
    def kinds(self) -> set[str]:
        """Return ``cpu`` or ``gpu``, of the devices that are described here."""
        return {devices.get(name).kind for name in self.devices if name in devices.names()}

    @property
    def archs(self) -> set[str]:
        """Return ``sm_80`` and the like, of the GPUs that are described here."""
        return {str(devices.get(name).target.get("arch")) for name in self.devices if name in devices.names()}

    @property
    def usable(self) -> bool:
        """Return True if its JSON files are those of a model of this version."""
        return self.state == "usable"

    def summary(self) -> dict[str, Any]:
        """Return size and the figures of its card: of the test where it has been evaluated, else of the validation."""
        return {
            "name": self.name,
            "devices": [*self.devices, *(f"{device} (zero-shot)" for device in self.zero_shot)],
            "megabytes": sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file()) / 1e6,
            **_figures(self.card),
            **{key: getattr(self, key) for key in ("usable", "state", "problem")},
        }


def models(root: Path = Path()) -> list[ModelEntry]:
    """List every model folder, shipped ones first, then the newest first."""
    configs = (path for pattern in _PATTERNS for path in root.glob(pattern) if (path.parent / WEIGHTS).is_file())
    local = sorted(configs, key=lambda path: path.stat().st_mtime, reverse=True)
    entries = [_entry(path.parent, path.parent.name) for path in sorted(SHIPPED.glob("*/config.json"))]
    entries += [_entry(path.parent, str(path.parent)) for path in local]
    return [entry for entry in entries if entry is not None]


def model_for(device: str | Device, entries: Sequence[ModelEntry], features: str = "cdmpp") -> ModelEntry:
    """Choose a model when none is named: the first usable one trained on ``device``, else made for it zero-shot.

    ``device`` is a name, or a device described in Python, which no file needs to describe.

    One that is named after the device goes before one of many devices.

    ``features``: the kind of programs to predict. For a device whose machine code can be read else the first that
    tells its error on unseen ones of that kind, rather one that knows a GPU of that architecture; for framework
    operators else the first of devices of that kind.
    ``ModelFormatError`` where there is none; the message lists what there is.
    """
    name = device if isinstance(device, str) else device.name
    entries = sorted((one for one in entries if one.features == features), key=lambda one: one.name != name)
    for names in ("devices", "zero_shot"):
        for entry in (one for one in entries if name in getattr(one, names)):
            if entry.usable:
                return entry
            if entry.state == "damaged":
                log.warning("passed over a damaged model: %s", entry.problem)
    described = devices.get(device) if isinstance(device, str) else device
    readable = features == "cdmpp" and (can_have_code(described.target) or can_have_gpu_code(described.target))
    alike = [one for one in entries if one.usable and described.kind in one.kinds]
    for entry in sorted(alike, key=lambda one: described.target.get("arch") not in one.archs):
        if features == EAGER_FEATURES or (readable and entry.tells_unseen):
            return entry
    usable = "; ".join(f"{entry.name} ({', '.join(entry.devices)})" for entry in entries if entry.usable)
    how = "" if features == "cdmpp" else f" features={features} model={features}"
    raise ModelFormatError(
        f"no model trained on {name} is here{how and ' for framework operators'}. Train one (cdmpp model train "
        f"device={name}{how}) or name one with --model to go by the datasheet alone; here now: {usable or 'none'}"
    )


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what tells whether the files of a model are still the same: name, time of change and size of each."""
    paths = [folder / name for name in (CONFIG, CARD, WEIGHTS)]
    found = [(path.name, path.stat()) for path in paths if path.exists()]
    return tuple((name, one.st_mtime_ns, one.st_size) for name, one in found)


def _entry(folder: Path, name: str) -> ModelEntry | None:
    """None for some other program's config.json."""
    return _known_entry(folder, name, (folder.absolute(), *state_of(folder)))


@lru_cache(maxsize=256)
def _known_entry(folder: Path, name: str, state: tuple[Any, ...]) -> ModelEntry | None:  # noqa: ARG001
    known: tuple[str, ...] = ()
    try:
        config = read_object(folder / CONFIG)
        if "extractor_version" not in config and "devices" not in config:
            return None
        if isinstance(config.get("devices"), dict):
            known = tuple(config["devices"])
        if problem := other_version(folder, config):
            return ModelEntry(name, folder, known, state="another version", problem=problem)
        stored = read_config(folder)
        card = read_object(folder / CARD) if (folder / CARD).exists() else {}
        try:
            made_for, _ = card.get("zero_shot", {}).get("device"), _figures(card)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFormatError(f"{folder / CARD} is garbled: {error}") from error
        zero_shot = () if made_for is None else (str(made_for),)
        return ModelEntry(name, folder, known, zero_shot, stored.features, stored.unseen is not None, card=card)
    except ModelFormatError as error:
        return ModelEntry(name, folder, known, state="damaged", problem=str(error))


def _figures(card: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that a summary takes from a card."""
    test = card.get("test") or {}
    metrics = test.get("metrics", {}) if test else card.get("validation", {})
    intervals = card.get("intervals", {})
    # A fine-tuned model may say why it has none.
    groups = {} if isinstance(intervals, str) else intervals.get("groups", {})
    promised: dict[str, float] = {}
    for group in groups.values():
        for level, entry in group["levels"].items():
            promised[level] = min(float(entry["promised"]), promised.get(level, 1.0))
    return {
        "figures_of": f"test, {test.get('split')}" if test else "validation",
        **{key: None if metrics.get(key) is None else float(metrics[key]) for key in _METRICS},
        "interval_coverage": {level: float(entry["coverage"]) for level, entry in test.get("intervals", {}).items()},
        "interval_promised": promised,
        "noise_floor_percent": dict(card.get("noise_floor_percent", {})),
        "created": str(card.get("created", "")),
    }
