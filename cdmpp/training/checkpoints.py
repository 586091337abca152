"""Checkpoints that are either whole or absent, and refused with what to do where they are damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from cdmpp.data.files import write_atomic
from cdmpp.errors import CdmppError

_NEEDED = {"state_dict", "history", "steps_taken", "epoch", "global_step", "loops", "optimizer_states", "lr_schedulers"}


class WholeCheckpoints(TorchCheckpointIO):
    """A full disk ends the run with one line and leaves the checkpoint before; Lightning may copy across disks."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """In memory first: the file then appears whole or not at all."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomic(Path(path), lambda temporary: _write(temporary, buffer))


def read_checkpoint(path: Path, module: nn.Module, place: str | torch.device = "cpu") -> dict[str, Any]:
    """The checkpoint of ``module`` in ``path``: tensors and plain numbers only, no pickled object is ever run.

    Raises:
        CdmppError: a missing or damaged file, or one of another model; it says how to go on.
    """
    try:
        stored = torch.load(path, map_location=place, weights_only=True)
        missing = _NEEDED - stored.keys()
        reason = f"it lacks {', '.join(sorted(missing))}" if missing else _difference(module, stored["state_dict"])
    except Exception as error:  # noqa: BLE001 - torch, zip and pickle raise a dozen types for a damaged file
        reason = (str(error) or type(error).__name__).splitlines()[0]
    if reason:
        raise CdmppError(
            f"the checkpoint {path} is damaged or of another model ({reason}). Delete the folder {path.parent.parent} "
            "and run the same command again: this member is then trained from its start, what else is there stays"
        )
    return stored


def _difference(module: nn.Module, stored: dict[str, Any]) -> str:
    shapes, stored_shapes = (
        {name: tuple(value.shape) for name, value in state.items()} for state in (module.state_dict(), stored)
    )
    odd = sorted(name for name in {**shapes, **stored_shapes} if shapes.get(name) != stored_shapes.get(name))
    return f"its {odd[0]} does not fit" if odd else ""


def _write(path: Path, buffer: io.BytesIO) -> None:
    path.write_bytes(buffer.getbuffer())
