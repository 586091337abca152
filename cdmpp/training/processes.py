"""The first of several training processes. Lightning or torchrun starts them and numbers them in their environment."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cdmpp.platform.lock import writing


class Terminated(SystemExit):
    """SIGTERM ended a training, which is not finished."""

    status = 128 + signal.SIGTERM
    """The process ends with this, as a shell tells it."""

    def __init__(self) -> None:
        super().__init__(self.status)


def is_rank_zero() -> bool:
    """Return True in the process that writes files and goes on after training; also where there is only one."""
    if "RANK" in os.environ:  # torchrun, Slurm through torchrun
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def one_writer(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder of a run, the first process for all of them; ``CdmppError`` where another run has it."""
    return writing(folder, "training") if is_rank_zero() else nullcontext()
