"""``model.safetensors`` of a model folder: names, shapes and types checked against what was built, then every number.

The file's header is compared first, so that nothing is allocated for tensors that do not belong there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cdmpp.errors import ModelFormatError
from cdmpp.model.build import Model
from cdmpp.uncertainty.calibration import LOCAL_INPUTS, Calibration
from cdmpp.uncertainty.conformal import METHODS

CALIBRATION = "calibration."
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "I64": torch.int64}
_AGAIN = "copy or train the model again"
# G groups, L levels, D inputs of the local scale, H hidden numbers of the model, C directions, F input numbers.
_SHAPES: dict[str, tuple[str | int, ...]] = {
    "conformal.n_tasks": ("G",),
    "conformal.methods": ("G", "L"),
    "conformal.lower": ("G", "L"),
    "conformal.upper": ("G", "L"),
    "conformal.scale.low": ("D",),
    "conformal.scale.high": ("D",),
    "conformal.scale.mean": ("D",),
    "conformal.scale.deviation": ("D",),
    "conformal.scale.coefficients": ("D+1",),
    "novelty.mean": ("H",),
    "novelty.directions": ("C", "H"),
    "novelty.variances": ("C+1",),
    "novelty.largest": ("F",),
    "novelty.smallest": ("F",),
    "novelty.deviation": ("F",),
    "novelty.borders": (2,),
    "novelty.grid": ("Q",),
    "novelty.border": (),
}
_WHOLE = ("conformal.n_tasks", "conformal.methods")
_POSITIVE = ("conformal.scale.deviation", "novelty.variances", "novelty.deviation", "novelty.borders")


def read_tensors(file: Path, models: Sequence[Model], calibrated: bool) -> dict[str, Tensor]:
    """The tensors of ``file``: exactly those of ``models`` (built on any torch device) and of their calibration.

    Raises:
        ModelFormatError: an unreadable file; a tensor that is missing, unknown, of another shape or type, or holds
            NaN or infinity. The message names it.
    """
    expected = {f"members.{i}.{name}": value for i, model in enumerate(models) for name, value in _state(model)}
    halves = {f"members.{i}.{name}" for i, model in enumerate(models) for name in trained_matrices(model)}
    try:
        with safe_open(file, "pt") as opened:
            names = list(opened.keys())
            own = [name for name in names if not name.startswith(CALIBRATION)]
            _same_names(file, own, list(expected))
            if calibrated:
                known = [CALIBRATION + name for name in _SHAPES]
                _same_names(file, [name for name in names if name not in expected], known)
            elif len(own) < len(names):
                raise ModelFormatError(f"{file} holds a calibration that config.json does not name; {_AGAIN}")
            for name, value in expected.items():
                _check_header(file, name, opened.get_slice(name), value, name in halves)
            found = {name: opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(
            f"{file} is missing, damaged or of another model ({(str(error) or repr(error)).splitlines()[0]}); {_AGAIN}"
        ) from error
    for name, value in found.items():
        _check_numbers(file, name, value)
    return found


def fill(models: Sequence[Model], tensors: Mapping[str, Tensor]) -> None:
    """Give the models their tensors, in the type that each was built with."""
    for i, model in enumerate(models):
        model.load_state_dict(
            {name: tensors[f"members.{i}.{name}"].to(value.dtype, copy=True) for name, value in _state(model)},
            assign=True,
        )


def restore_calibration(
    file: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], hidden: int, inputs: int
) -> Calibration:
    """From tensors of ``read_tensors``.

    Args:
        hidden: numbers of the model's last hidden vector.
        inputs: numbers of a leaf and a kernel together.

    Raises:
        ModelFormatError: parts that do not fit each other or the model, or numbers that cannot be.
    """
    kept = {name.removeprefix(CALIBRATION): v for name, v in tensors.items() if name.startswith(CALIBRATION)}
    arrays = {name: v.numpy().copy() for name, v in kept.items()}  # else they would change with the mapped file
    sizes = {"G": len(settings["groups"]), "L": len(settings["levels"]), "H": hidden, "F": inputs}
    # A constant scale has no inputs and not even a constant among its coefficients.
    constant = arrays["conformal.scale.coefficients"].shape == (0,)
    sizes |= {"D": 0, "D+1": 0} if constant else {"D": LOCAL_INPUTS, "D+1": LOCAL_INPUTS + 1}
    rank = len(arrays["novelty.directions"]) if arrays["novelty.directions"].ndim else 0
    sizes |= {"C": rank, "C+1": rank + 1, "Q": max(2, arrays["novelty.grid"].size)}
    for name, shape in _SHAPES.items():
        wanted = tuple(side if isinstance(side, int) else sizes[side] for side in shape)
        if arrays[name].shape != wanted:
            raise _garbled(file, CALIBRATION + name, f"has the shape {arrays[name].shape}, expected {wanted}")
        if (arrays[name].dtype == np.int64) != (name in _WHOLE):
            raise _garbled(file, CALIBRATION + name, f"is of type {arrays[name].dtype}")
    for name in _POSITIVE:
        if not (arrays[name] > 0).all():
            raise _garbled(file, CALIBRATION + name, "must be positive")
    methods, tasks = arrays["conformal.methods"], arrays["conformal.n_tasks"]
    if not ((methods >= 0) & (methods < len(METHODS))).all() or not (tasks > 0).all():
        raise _garbled(file, CALIBRATION + "conformal.methods", "or n_tasks holds a number that stands for nothing")
    if (arrays["conformal.lower"] > 0).any() or (arrays["conformal.upper"] < 0).any():
        raise _garbled(file, CALIBRATION + "conformal.lower", "must be at most 0 and upper at least 0")
    if (np.diff(arrays["novelty.grid"]) < 0).any():
        raise _garbled(file, CALIBRATION + "novelty.grid", "must rise")
    return Calibration.restore(arrays, settings)


def trained_matrices(model: Model) -> set[str]:
    """Names of what may be stored as float16."""
    return {name for name, value in model.named_parameters() if value.dim() > 1}


def _state(model: Model) -> list[tuple[str, Tensor]]:
    return list(model.state_dict().items())


def _same_names(file: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    for what, names in (("lacks", set(expected) - set(found)), ("holds unknown", set(found) - set(expected))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelFormatError(
                f"{file} {what} tensors: {', '.join(sorted(names)[:3])}{more}; it does not belong to this config.json, "
                f"{_AGAIN}"
            )


def _check_header(file: Path, name: str, stored: Any, expected: Tensor, half: bool) -> None:
    shape, kind = tuple(stored.get_shape()), _TYPES.get(stored.get_dtype())
    if shape != tuple(expected.shape):
        raise _garbled(file, name, f"has the shape {shape}, expected {tuple(expected.shape)}")
    if kind is not expected.dtype and not (half and kind is torch.float16):
        raise _garbled(file, name, f"is of type {stored.get_dtype()}, expected {expected.dtype}")


def _check_numbers(file: Path, name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        return
    finite = torch.isfinite(value)
    if name.endswith(".code_anchor.known"):  # rows of places that no device has taken are infinite throughout
        finite = finite | (value == torch.inf).all(1, keepdim=True)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise _garbled(file, name, f"holds {bad} of {value.numel()} values that are NaN or infinite")


def _garbled(file: Path, name: str, reason: str) -> ModelFormatError:
    return ModelFormatError(f"{file}: tensor {name} {reason}; {_AGAIN}")
