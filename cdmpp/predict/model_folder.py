"""A model folder becomes a predictor: found by path or name, its versions and parts checked."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cdmpp import __version__
from cdmpp.ast.layout import EXTRACTOR_VERSION, FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.code.code_vector import CODE_VERSION
from cdmpp.devices import VECTOR_WIDTH, Device
from cdmpp.errors import ModelFormatError
from cdmpp.model.build import build_model, config_from_dict
from cdmpp.predict.calibration import Calibration
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.predictor import CALIBRATION, CARD, CONFIG, FORMAT_VERSION, WEIGHTS, Predictor


def load(path_or_name: str | Path) -> Predictor:
    """A predictor from a model folder, or a shipped one by name.

    Raises:
        ModelFormatError: no such model, missing or damaged files, or a model of another extractor version.
    """
    folder = _find(path_or_name)
    config = _read_json(folder / CONFIG)
    try:
        _check_versions(folder, config)
        trained_on = {name: _device_from_dict(name, values) for name, values in config["devices"].items()}
        widths = config["leaf_width"], config["kernel_width"], config["device_width"]
        # Older models do not name what they had not.
        older = {"code": False, "code_anchor": False}
        members = [{**older, **m} if m.get("name") == "cdmpp" else m for m in config["members"]]
        models = [build_model(config_from_dict(member), *widths) for member in members]
        log_shift = float(config.get("log_shift", 0.0))
        if not math.isfinite(log_shift):
            raise ValueError(f"log_shift={log_shift}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFormatError(f"{folder / CONFIG} lacks or garbles {error}; copy or train the model again") from error
    try:
        weights = load_file(folder / WEIGHTS)
        for i, model in enumerate(models):
            prefix = f"members.{i}."
            model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        calibration = _restored(weights, config.get("calibration"))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise ModelFormatError(
            f"{folder / WEIGHTS} is missing, damaged or of another model ({str(error).splitlines()[0]}); "
            "copy or train the model again"
        ) from error
    features = next(name for name, version in FEATURES.items() if version == config["extractor_version"])
    card = _read_json(folder / CARD) if (folder / CARD).is_file() else {}
    return Predictor(models, trained_on, card, features, calibration, log_shift)


def pretrained_names() -> list[str]:
    """Names of the models that ship with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def _find(path_or_name: str | Path) -> Path:
    for folder in (Path(path_or_name), SHIPPED / str(path_or_name)):
        if (folder / CONFIG).is_file():
            return folder
    names = pretrained_names()
    near = difflib.get_close_matches(str(path_or_name), names, n=3) or names
    raise ModelFormatError(
        f"{path_or_name} is neither a model folder (no {CONFIG} in it) nor a shipped model; "
        f"shipped: {', '.join(near) or 'none'}. `python scripts/train.py device=...` makes one"
    )


def _check_versions(folder: Path, config: Mapping[str, Any]) -> None:
    if config["format_version"] != FORMAT_VERSION:
        raise ModelFormatError(
            f"{folder} has model format {config['format_version']}; this cdmpp {__version__} reads {FORMAT_VERSION}. "
            f"Install cdmpp {config.get('cdmpp_version', 'of that format')} or train again"
        )
    if config["extractor_version"] not in FEATURES.values():
        raise ModelFormatError(
            f"{folder} was trained on ASTs of extractor version {config['extractor_version']} and would misread those "
            f"of this cdmpp {__version__}, version {EXTRACTOR_VERSION}. Train again with scripts/train.py, or install "
            f"cdmpp {config.get('cdmpp_version', 'of that version')}"
        )
    if config.get("code_version", CODE_VERSION) != CODE_VERSION:
        raise ModelFormatError(
            f"{folder} reads code vectors of version {config['code_version']}, this cdmpp {__version__} makes version "
            f"{CODE_VERSION}. Train again with scripts/train.py"
        )
    widths = config["leaf_width"], config["kernel_width"], config["device_width"]
    if widths != (LEAF_WIDTH, KERNEL_WIDTH, VECTOR_WIDTH):
        raise ModelFormatError(
            f"{folder} expects leaf, kernel and device vectors of widths {widths}; this cdmpp {__version__} makes "
            f"{(LEAF_WIDTH, KERNEL_WIDTH, VECTOR_WIDTH)}. Train again with scripts/train.py"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path} is not readable JSON ({error}); copy or train the model again") from error


def _restored(tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any] | None) -> Calibration | None:
    """None for a model that was saved without; ``KeyError`` names a part that is missing."""
    if settings is None:
        return None
    arrays = {k.removeprefix(CALIBRATION): v.numpy() for k, v in tensors.items() if k.startswith(CALIBRATION)}
    return Calibration.restore(arrays, settings)


def _device_from_dict(name: str, values: Mapping[str, Any]) -> Device:
    return Device(name, values["title"], values["kind"], values["target"], values["spec"], {})
