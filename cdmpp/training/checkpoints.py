"""Checkpoints that are either whole or absent, and refused with what to do where they are damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from cdmpp.errors import CdmppError
from cdmpp.model.old_names import current_names
from cdmpp.platform.files import write_atomic

_NEEDED = {"state_dict", "history", "epoch", "global_step", "loops", "optimizer_states", "lr_schedulers"}


class WholeCheckpoints(TorchCheckpointIO):
    """A full disk ends the run with one line and leaves the checkpoint before; Lightning may copy across disks."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write to memory first, so that the file appears whole or not at all."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomic(Path(path), lambda temporary: temporary.write_bytes(buffer.getbuffer()))


def load_checkpoint(path: Path, module: nn.Module) -> None:
    """Put the state in ``path`` into ``module``, no pickled object is ever run; ``CdmppError`` says how to go on."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if missing := _NEEDED - stored.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        module.load_state_dict(current_names(stored["state_dict"]))
    except Exception as error:
        # torch, zip and pickle raise a dozen types for a damaged file, some with a text of many lines.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CdmppError(
            f"the checkpoint {path} is damaged or of another model ({reason}). Delete the folder {path.parent.parent} "
            "and run the same command again: this member is then trained from its start, what else is there stays"
        ) from error
