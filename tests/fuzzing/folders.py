"""Tampered model folders: mutants of the shipped models and of a small one of the published architecture."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.devices import VECTOR_WIDTH
from cdmpp.model.build import build_model
from cdmpp.model.config import model_config
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.stored_config import read_config
from fuzzing.inputs import ATTACKS
from fuzzing.mutate import damaged_bytes, damaged_json, to_json

FILES = ("config.json", "card.json", "model.safetensors")
_REFERENCE: dict[str, Any] = {
    "name": "reference", "layers": 1, "feedforward": 16, "input_layer": 16, "embedded_layers": [16], "embedding": 8,
    "device_layers": [16], "regression_layers": [16], "leaf_counts": [1, 2, 4], "use_device": True,
}  # fmt: skip


_MEMBER_KEYS = ("name", "width", "layers", "heads", "feedforward", "hidden", "label",
                "bins", "clip", "dropout", "device_costs", "code", "prior", "leaf_counts", "input_layer",
                "depth")  # fmt: skip
_ODD = (0, -1, 1, 3, 10**9, 10**400, "x", None, [], {}, float("nan"), float("inf"), 1e308, True, [2, 1], [1] * 5000)
_IMPOSSIBLE: tuple[tuple[tuple[Any, ...], Any], ...] = (
    *((("members",), value) for value in ([], {}, None, 3, [[]], [{}], [{"name": "reference"}])),
    *((("devices",), value) for value in ([], {}, None, {"x": {}}, {"": {}})),
    *((("devices", "xeon-icelake", "spec"), value) for value in ({}, [], None, {"clock_mhz": 1.0})),
    *((("devices", "xeon-icelake", key), None) for key in ("kind", "target", "title")),
    *(
        (("calibration",), value)
        for value in ({}, [], 3, {"groups": [], "levels": []}, {"groups": [""], "levels": [2]})
    ),
    *((("calibration", key), value) for key in ("groups", "levels") for value in ([], None, [0.8], ["", "", "x"], 1)),
    *(((key,), value) for key in ("leaf_width", "kernel_width", "format_version", "log_shift") for value in _ODD),
    *(((key,), value) for key in ("extractor_version", "code_version") for value in ("0", None, [], {})),
)


def write_bases(home: Path) -> None:
    """Valid model folders of one CPU: the shipped ones, and one of the published architecture."""
    for name in ("xeon-icelake", "cpus"):
        shutil.copytree(SHIPPED / name, home / "folder" / name)
    model = build_model(model_config(_REFERENCE), LEAF_WIDTH, KERNEL_WIDTH, VECTOR_WIDTH)
    devices = read_config(SHIPPED / "xeon-icelake").devices
    Predictor([model], devices, {"created": "2026-01-01"}).save(home / "folder" / "reference")


def write_mutant(home: Path, out: Path, rng: random.Random) -> Path:
    """A tampered copy of one of them in the empty folder ``out``."""
    folder = out / "model"
    shutil.copytree(rng.choice(sorted((home / "folder").iterdir())), folder)
    for name in rng.sample(FILES, rng.choice([1, 1, 1, 2]), counts=[2, 1, 2]):
        path, choice = folder / name, rng.random()
        if not path.is_file():
            continue
        if choice < 0.15:
            path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        elif choice < 0.2:
            path.unlink()
            if rng.random() < 0.5:
                path.mkdir()
        elif choice < 0.23:
            shutil.copy(SHIPPED / "a100" / name, path)
        elif path.suffix == ".json":
            _edit_json(path, rng)
        else:
            _edit_tensors(path, rng)
    return folder


def _edit_json(path: Path, rng: random.Random) -> None:
    try:
        value = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        return
    choice = rng.random()
    if path.name == "config.json" and choice < 0.3:
        _set(value, *rng.choice(_IMPOSSIBLE))
    elif path.name == "config.json" and choice < 0.6:
        _set(value, ("members", 0, rng.choice(_MEMBER_KEYS)), rng.choice(_ODD))
    else:
        value = damaged_json(value, rng, ATTACKS)
    path.write_text(to_json(value), encoding="utf-8", errors="surrogatepass")


def _set(value: Any, place: tuple[Any, ...], new: Any) -> None:
    for step in place[:-1]:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(value, dict):
        value[place[-1]] = new


def _edit_tensors(path: Path, rng: random.Random) -> None:
    try:
        tensors = load_file(path)
    except Exception:  # noqa: BLE001 - damaged a moment ago
        return
    name = rng.choice(sorted(tensors))
    value = tensors[name].clone()
    flat = value.reshape(-1)
    match rng.randrange(9):
        case 0:
            del tensors[name]
        case 1:
            tensors[rng.choice(["x", "members.7.out.weight", "calibration.x", "members.0"])] = value
        case 2:
            tensors[name] = value[None].contiguous()
        case 3:
            tensors[name] = flat[: max(0, len(flat) - 1)].clone()
        case 4:
            tensors[name] = value.to(
                rng.choice([torch.float16, torch.float64, torch.bfloat16, torch.int64, torch.bool])
            )
        case 5 if value.is_floating_point() and len(flat):
            flat[rng.randrange(len(flat))] = rng.choice([float("nan"), float("inf"), -float("inf")])
            tensors[name] = flat.reshape(value.shape)
        case 6:
            tensors[name] = (value.double() * rng.choice([1e30, -1.0, 0.0])).to(value.dtype)
        case 7:  # every weight as large as its type holds: finite, and no answer comes of it
            tensors = {key: torch.full_like(v, 3e38) if v.dtype == torch.float32 else v for key, v in tensors.items()}
        case _:
            other = rng.choice(sorted(tensors))
            tensors[name], tensors[other] = tensors[other].clone(), value
    save_file(tensors, path)
