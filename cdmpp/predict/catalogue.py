"""Which trained models are here: shipped ones, those in ``models/``, and what ``train.py`` left. Opens no weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.errors import ModelFormatError

SHIPPED = Path(__file__).parent / "pretrained"
"""Models that come with the package."""
_PATTERNS = ("models/*/config.json", "outputs/*/*/model/config.json")  # outputs/<device>/<time>/model: train.py


@dataclass(frozen=True)
class ModelEntry:
    name: str
    """What ``cdmpp.load`` takes: the plain name of a shipped model, a path else."""
    folder: Path
    devices: tuple[str, ...]
    """Devices it was trained on."""
    usable: bool
    """False where another extractor version made it."""
    zero_shot: tuple[str, ...] = ()
    """Devices it was made for without a record of them."""

    def card(self) -> dict[str, Any]:
        """What a reader needs to know of the model; empty where it came without."""
        try:
            return dict(json.loads((self.folder / "card.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def summary(self) -> dict[str, Any]:
        """Size and the figures of its card, those of the test where it has been evaluated, else of the validation."""
        card = self.card()
        test = card.get("test")
        figures = test["metrics"] if test else card.get("validation", {})
        intervals = {level: part["coverage"] for level, part in (test or {}).get("intervals", {}).items()}
        return {
            "name": self.name,
            "devices": [*self.devices, *(f"{device} (zero-shot)" for device in self.zero_shot)],
            "megabytes": sum(path.stat().st_size for path in self.folder.iterdir()) / 1e6,
            "figures_of": f"test, {test['split']}" if test else "validation",
            **{key: figures.get(key) for key in ("mape", "median_ape", "spearman_within_task", "top1_regret")},
            "interval_coverage": intervals,
            "noise_floor_percent": card.get("noise_floor_percent", {}),
            "created": card.get("created", ""),
            "usable": self.usable,
        }


def models(root: Path = Path()) -> list[ModelEntry]:
    """Every model folder, shipped ones first, then the newest first."""
    local = [
        path for pattern in _PATTERNS for path in root.glob(pattern) if (path.parent / "model.safetensors").is_file()
    ]
    local.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    entries = [_entry(path, path.parent.name) for path in sorted(SHIPPED.glob("*/config.json"))]
    entries += [_entry(path, str(path.parent)) for path in dict.fromkeys(local)]
    return [entry for entry in entries if entry is not None]


def model_for(device: str, entries: Sequence[ModelEntry]) -> ModelEntry:
    """The model to use when none is named: the first usable one trained on ``device``, else made for it zero-shot.

    Raises:
        ModelFormatError: there is none; the message lists what there is.
    """
    for names in ("devices", "zero_shot"):
        for entry in entries:
            if entry.usable and device in getattr(entry, names):
                return entry
    known = "; ".join(f"{entry.name} ({', '.join(entry.devices)})" for entry in entries if entry.usable)
    raise ModelFormatError(
        f"no model trained on {device} is here. Train one (python scripts/train.py device={device}) or name one with "
        f"--model to go by the datasheet alone; here now: {known or 'none'}"
    )


def _entry(config: Path, name: str) -> ModelEntry | None:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        usable = content["extractor_version"] == EXTRACTOR_VERSION
        return ModelEntry(name, config.parent, tuple(content["devices"]), usable, _zero_shot(config.parent))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # some other program's config.json


def _zero_shot(folder: Path) -> tuple[str, ...]:
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        return (str(card["zero_shot"]["device"]),)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
