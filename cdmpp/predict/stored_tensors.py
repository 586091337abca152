"""``model.safetensors`` of a model folder: names, shapes and types checked against what was built, then every number.

The file's header is compared first, so that nothing is allocated for tensors that do not belong there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.errors import ModelFormatError
from cdmpp.model.build import Model
from cdmpp.uncertainty.calibration import LOCAL_INPUTS, Calibration

CALIBRATION = "calibration."
_UNREAD = CALIBRATION + "conformal.methods"
"""Older models tell how each bound was found."""
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64"}
_AGAIN = "copy or train the model again"
# G groups, L levels, D inputs of the local scale, H hidden numbers of the model, C directions, F input numbers of a
# leaf and a kernel together, Q quantiles.
_SHAPES: dict[str, tuple[str | int, ...]] = {
    "conformal.n_tasks": ("G",),
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
_CALIBRATION_TYPES = {"conformal.n_tasks": "I64", "novelty.directions": "F32"}  # F64 are the others
_POSITIVE = (
    "conformal.n_tasks",
    "conformal.scale.deviation",
    "novelty.variances",
    "novelty.deviation",
    "novelty.borders",
)


def read_weights(file: Path, models: Sequence[Model], settings: Mapping[str, Any] | None) -> Calibration | None:
    """Give ``models`` (built on any torch device) their weights, and return their calibration.

    Args:
        file: holds exactly the tensors of ``models`` and of their calibration.
        models: the members, in order.
        settings: ``groups`` and ``levels`` of the calibration; None where there is none.

    Raises:
        ModelFormatError: an unreadable file; a tensor that is missing, unknown, of another shape or type, or holds
            NaN, infinity or another number that cannot be. The message names it.
    """
    try:
        with safe_open(file, "pt") as opened:
            tensors = _checked(file, opened, models, settings)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(
            f"{file} is missing, damaged or of another model ({(str(error) or repr(error)).splitlines()[0]}); {_AGAIN}"
        ) from error
    for name, value in tensors.items():
        _check_finite(file, name, value)
    for i, model in enumerate(models):
        state = model.state_dict()
        own = {name: tensors[f"members.{i}.{name}"].to(value.dtype, copy=True) for name, value in state.items()}
        model.load_state_dict(own, assign=True)
    if settings is None:
        return None
    kept = {name.removeprefix(CALIBRATION): v for name, v in tensors.items() if name.startswith(CALIBRATION)}
    arrays = {name: value.numpy().copy() for name, value in kept.items()}  # else they would change with the mapped file
    _check_calibration(file, arrays)
    return Calibration.restore(arrays, settings)


def trained_matrices(model: Model) -> set[str]:
    """Names of what may be stored as float16."""
    return {name for name, value in model.named_parameters() if value.dim() > 1}


def _checked(file: Path, opened: Any, models: Sequence[Model], settings: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """The tensors of an open file after their names, shapes and types were compared with what is expected."""
    names = set(opened.keys())
    expected: dict[str, tuple[tuple[int, ...], set[str]]] = {}
    for i, model in enumerate(models):
        halves = trained_matrices(model)
        for name, value in model.state_dict().items():
            kinds = {_TYPES.get(value.dtype, ""), *(["F16"] if name in halves else [])}
            expected[f"members.{i}.{name}"] = (tuple(value.shape), kinds)
    calibration = [CALIBRATION + name for name in _SHAPES] if settings is not None else []
    if settings is None and any(name.startswith(CALIBRATION) for name in names):
        raise ModelFormatError(f"{file} holds a calibration that config.json does not name; {_AGAIN}")
    wanted = {*expected, *calibration}
    for what, odd in (("lacks", wanted - names), ("holds unknown", names - wanted - {_UNREAD})):
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise ModelFormatError(
                f"{file} {what} tensors: {', '.join(sorted(odd)[:3])}{more}; it does not belong to this config.json, "
                f"{_AGAIN}"
            )
    shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in wanted}
    if settings is not None:
        sizes = _sizes(shapes, settings, models[0].out.in_features)
        for name, sides in _SHAPES.items():
            shape = tuple(side if isinstance(side, int) else sizes[side] for side in sides)
            expected[CALIBRATION + name] = (shape, {_CALIBRATION_TYPES.get(name, "F64")})
    for name, (shape, kinds) in expected.items():
        if shapes[name] != shape:
            _garbled(file, name, f"has the shape {shapes[name]}, expected {shape}")
        if (kind := opened.get_slice(name).get_dtype()) not in kinds:
            _garbled(file, name, f"is of type {kind}, expected {' or '.join(sorted(kinds))}")
    return {name: opened.get_tensor(name) for name in wanted}


def _sizes(shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any], hidden: int) -> dict[str, int]:
    """Each letter of ``_SHAPES``: given by the model and ``settings``, or free and read from one tensor."""
    rank = (*shapes[f"{CALIBRATION}novelty.directions"], 0)[0]
    return {
        "G": len(settings["groups"]),
        "L": len(settings["levels"]),
        "H": hidden,
        "F": LEAF_WIDTH + KERNEL_WIDTH,
        "D": LOCAL_INPUTS,
        "D+1": LOCAL_INPUTS + 1,
        "C": rank,
        "C+1": rank + 1,
        "Q": max(2, *shapes[f"{CALIBRATION}novelty.grid"], 0),
    }


def _check_calibration(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    for name in _POSITIVE:
        if not (arrays[name] > 0).all():
            _garbled(file, CALIBRATION + name, "must be positive")
    if (arrays["conformal.lower"] > 0).any() or (arrays["conformal.upper"] < 0).any():
        _garbled(file, f"{CALIBRATION}conformal.lower", "must be at most 0 and upper at least 0")
    if (np.diff(arrays["novelty.grid"]) < 0).any():
        _garbled(file, f"{CALIBRATION}novelty.grid", "must rise")


def _check_finite(file: Path, name: str, value: Tensor) -> None:
    finite = torch.isfinite(value)
    if name.endswith(".code_anchor.known"):  # rows of places that no device has taken are infinite throughout
        finite = finite | (value == torch.inf).all(1, keepdim=True)
    if bad := int((~finite).sum()):
        _garbled(file, name, f"holds {bad} of {value.numel()} values that are NaN or infinite")


def _garbled(file: Path, name: str, reason: str) -> NoReturn:
    raise ModelFormatError(f"{file}: tensor {name} {reason}; {_AGAIN}")
