"""Checkpoint: the state of all stages between two steps, as safetensors and one JSON file that makes them valid."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cdmpp.errors import DataError, UsageError
from cdmpp.partition.processes.weights import Weights
from cdmpp.platform.files import read_json, write_atomic, write_json

CHECKPOINT_FILE = "checkpoint.json"
"""It names the files of the newest checkpoint. It is written last, by rename: files that it does not name are void."""
_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    step: int
    """Steps that had been run."""
    folder: str
    """Name of the folder of the stages' files."""
    job: Mapping[str, Any]
    """Settings that must be the same to go on."""
    optimizers: Sequence[Any]
    """The answers of ``save_stage``, one a stage."""
    losses: Sequence[Any]
    held_out: Sequence[Any]


def save_stage(path: Path, weights: Weights) -> Any:
    """Write the tensors of a stage; return the rest of its optimizer's state, as JSON holds it."""
    tensors = {f"network/{name}": one for name, one in weights.state().items()}
    tensors["random"] = torch.get_rng_state()
    state = weights.optimizer.state_dict() if weights.optimizer else {"state": {}, "param_groups": []}
    numbers: dict[str, dict[str, Any]] = {}
    for index, own in state["state"].items():
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    whole = {name: one.detach().clone().contiguous() for name, one in tensors.items()}  # none shares memory with others
    write_atomic(path, lambda temporary: save_file(whole, temporary))
    return {"groups": state["param_groups"], "numbers": numbers}


def load_stage(path: Path, weights: Weights, rest: Any, updates: int) -> None:
    """Put a stage back into the state that ``save_stage`` wrote; ``updates``: that its weights had.

    Raises:
        DataError: the file is missing or broken, or is of another network.
    """
    try:
        tensors = load_file(path)
        weights.restore({name[8:]: one for name, one in tensors.items() if name.startswith("network/")}, updates)
        state: dict[int, dict[str, Any]] = {int(index): dict(own) for index, own in rest["numbers"].items()}
        for name, one in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/", 2)
                state.setdefault(int(index), {})[key] = one
        if weights.optimizer:
            groups = [
                {name: tuple(value) if isinstance(fresh.get(name), tuple) else value for name, value in group.items()}
                for group, fresh in zip(rest["groups"], weights.optimizer.param_groups, strict=True)
            ]
            weights.optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(tensors["random"])
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise DataError(f"cannot go on from {path}: {error}") from None


def publish(folder: Path, one: Checkpoint) -> None:
    """Make a checkpoint whose stages have written their files the newest, and delete older ones."""
    values = {name: getattr(one, name) for name in ("step", "folder", "job", "optimizers", "losses", "held_out")}
    write_json(folder / CHECKPOINT_FILE, {"format": _FORMAT, **values})
    sweep(folder, one.folder)


def sweep(folder: Path, keep: str | None) -> None:
    """Delete the folders of other checkpoints, also of those that were never published."""
    for path in folder.glob("step-*"):
        if path.name != keep and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path, job: Mapping[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of a folder; None where there is none.

    Raises:
        DataError: the file is no checkpoint.
        UsageError: it is of another job.
    """
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    values = read_json(path)
    try:
        if values.pop("format") != _FORMAT:
            raise DataError(f"{path} has another format: expected {_FORMAT}; it was written by another version")
        found = Checkpoint(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no checkpoint: {error!r}") from None
    for name, value in job.items():
        if found.job.get(name) != value:
            raise UsageError(
                f"{path} is of a run with {name} {found.job.get(name)}, and {name} is {value}: give the same to go on, "
                "or another folder"
            )
    return found
