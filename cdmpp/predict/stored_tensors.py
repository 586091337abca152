"""``model.safetensors`` of a model folder: names, shapes, types and numbers checked against what was built."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.errors import ModelFormatError
from cdmpp.model.build import Model
from cdmpp.model.old_names import current_names
from cdmpp.model.old_shapes import current_shapes
from cdmpp.model.ranker import Ranker
from cdmpp.predict.stored_config import AGAIN, CALIBRATIONS, SHA256, StoredConfig
from cdmpp.uncertainty.calibration import LOCAL_INPUTS, Calibration

log = logging.getLogger(__name__)
Expected: TypeAlias = dict[str, tuple[tuple[int, ...], set[torch.dtype]]]
"""Name of a tensor -> shape and allowed types."""
RANKER = "ranker."
_UNREAD = f"{CALIBRATIONS[0]}.conformal.methods"
"""Older models tell how each bound was found."""
# G groups, L levels, D inputs of the local scale, H hidden numbers of the model, C directions, F input numbers of a
# leaf and a kernel together, Q quantiles. The type is float64 where nothing else is said.
_SHAPES: dict[str, tuple[str | int, ...]] = {
    "conformal.n_tasks": ("G",),
    "conformal.lower": ("G", "L"),
    "conformal.upper": ("G", "L"),
    **dict.fromkeys((f"conformal.scale.{name}" for name in ("low", "high", "mean", "deviation")), ("D",)),
    "conformal.scale.coefficients": ("D+1",),
    "novelty.mean": ("H",),
    "novelty.directions": ("C", "H"),
    "novelty.variances": ("C+1",),
    **dict.fromkeys((f"novelty.{name}" for name in ("largest", "smallest", "deviation")), ("F",)),
    "novelty.borders": (2,),
    "novelty.grid": ("Q",),
    "novelty.border": (),
}
_TYPES = {"conformal.n_tasks": torch.int64, "novelty.directions": torch.float32}
_POSITIVE = ("conformal.n_tasks", "conformal.scale.deviation", "novelty.variances", "novelty.deviation",
             "novelty.borders")  # fmt: skip


def read_weights(
    file: Path, models: Sequence[Model], config: StoredConfig, ranker: Ranker | None = None
) -> Calibration | None:
    """Give ``models`` and ``ranker`` (built on any torch device) their weights, and return their calibration.

    ``ModelFormatError`` names the file, and the tensor that is missing, unknown, of another shape or type, or holds an
    impossible number; or says that the file has not the checksum of ``config``. Without one it is read with a warning.
    """
    settings = config.calibrations
    try:
        tensors = current_shapes(current_names(load_file(file)))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ModelFormatError(f"{file} is missing, damaged or of another model ({reason}); {AGAIN}") from error
    modules = _named(models, ranker)
    expected = _of_weights(modules)
    for key, one in settings.items():
        expected |= _of_calibration(tensors, key, one, models[0].out.in_features)
        tensors.pop(_UNREAD, None)
    for what, odd in (("lacks", expected.keys() - tensors), ("holds unknown", tensors.keys() - expected)):
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise ModelFormatError(
                f"{file} {what} tensors: {', '.join(sorted(odd)[:3])}{more}; it does not belong to this config.json, "
                f"{AGAIN}"
            )
    for name, reason in _faults(tensors, expected):
        raise ModelFormatError(f"{file}: tensor {name} {reason}; {AGAIN}")
    _check_sum(file, config.weights_sha256)
    for prefix, module in modules.items():
        state = module.state_dict()
        own = {name: tensors[prefix + name].to(value.dtype, copy=True) for name, value in state.items()}
        module.load_state_dict(own, assign=True)
    # Copies: the tensors would change with the mapped file.
    found = {
        key: Calibration.restore({name: tensors[f"{key}.{name}"].numpy().copy() for name in _SHAPES}, one)
        for key, one in settings.items()
    }
    with_code, without_code = (found.get(key) for key in CALIBRATIONS)
    return with_code and replace(with_code, without_code=without_code)


def _check_sum(file: Path, expected: str | None) -> None:
    """Last of the checks: the others say what is wrong."""
    if expected is None:
        log.warning("%s has no %s in its config.json, so changed weights are not noticed: save it again", file, SHA256)
        return
    with file.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
            raise ModelFormatError(f"{file} is not the file that was saved with this config.json ({SHA256}); {AGAIN}")


def calibrations(calibration: Calibration | None) -> dict[str, Calibration]:
    """Return the calibrations by their keys in ``CALIBRATIONS``, under which their tensors are stored as well."""
    both = (calibration, calibration and calibration.without_code)
    return {key: one for key, one in zip(CALIBRATIONS, both, strict=True) if one is not None}


def stored_weights(models: Sequence[Model], ranker: Ranker | None, half: bool) -> dict[str, Tensor]:
    """Return the weights by name in the file; ``half``: trained matrices, not what was fitted, as float16."""
    weights = {}
    for prefix, module in _named(models, ranker).items():
        matrices = _trained_matrices(module) if half else set()
        for name, value in module.state_dict().items():
            kept = value.detach().cpu().contiguous()
            weights[prefix + name] = kept.half() if name in matrices else kept
    return weights


def _named(models: Sequence[Model], ranker: Ranker | None) -> dict[str, nn.Module]:
    """Beginning of the names of its tensors -> module."""
    members = {f"members.{i}.": model for i, model in enumerate(models)}
    return {**members, RANKER: ranker} if ranker else dict(members)


def _trained_matrices(module: nn.Module) -> set[str]:
    """Names of what may be stored as float16."""
    return {name for name, value in module.named_parameters() if value.dim() > 1}


def _of_weights(modules: Mapping[str, nn.Module]) -> Expected:
    expected = {}
    for prefix, module in modules.items():
        matrices = _trained_matrices(module)
        for name, value in module.state_dict().items():
            types = {value.dtype, torch.float16} if name in matrices else {value.dtype}
            expected[prefix + name] = tuple(value.shape), types
    return expected


def _of_calibration(tensors: Mapping[str, Tensor], key: str, settings: Mapping[str, Any], hidden: int) -> Expected:
    """The same of a calibration. How many directions and quantiles there are the file itself says."""
    names = (f"{key}.novelty.{name}" for name in ("directions", "grid"))
    rank, quantiles = ((*tensors.get(name, Tensor()).shape, 0)[0] for name in names)
    sizes = {"G": len(settings["groups"]), "L": len(settings["levels"]), "H": hidden, "F": LEAF_WIDTH + KERNEL_WIDTH}
    sizes |= {"D": LOCAL_INPUTS, "D+1": LOCAL_INPUTS + 1, "C": rank, "C+1": rank + 1, "Q": max(2, quantiles)}
    expected = {}
    for name, sides in _SHAPES.items():
        shape = tuple(side if isinstance(side, int) else sizes[side] for side in sides)
        expected[f"{key}.{name}"] = shape, {_TYPES.get(name, torch.float64)}
    return expected


def _faults(tensors: Mapping[str, Tensor], expected: Expected) -> Iterator[tuple[str, str]]:
    """Tensors that cannot be, each with what is wrong in it."""
    for name, (shape, types) in expected.items():
        value = tensors[name]
        if tuple(value.shape) != shape:
            yield name, f"has the shape {tuple(value.shape)}, expected {shape}"
        if value.dtype not in types:
            yield name, f"is of type {value.dtype}, expected {' or '.join(sorted(map(str, types)))}"
        finite = torch.isfinite(value)
        if name.endswith("prior.known"):  # rows of places that no device has taken are infinite throughout
            finite = finite | (value == torch.inf).all(1, keepdim=True)
        if bad := int((~finite).sum()):
            yield name, f"holds {bad} of {value.numel()} values that are NaN or infinite"
        key, _, own = name.partition(".")
        match own if key in CALIBRATIONS else name:
            case positive if positive in _POSITIVE and not (value > 0).all():
                yield name, "must be positive"
            case "conformal.lower" if (value > 0).any():
                yield name, "must be at most 0"
            case "conformal.upper" if (value < 0).any():
                yield name, "must be at least 0"
            case "novelty.grid" if (value.diff() < 0).any():
                yield name, "must rise"
