"""Which of several training processes this one is. Lightning or torchrun starts them; their environment says so."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cdmpp.lock import writing


def is_rank_zero() -> bool:
    """True in the process that writes files and goes on after training; also where there is only one."""
    if "RANK" in os.environ:  # torchrun, Slurm through torchrun
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def one_writer(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder of a run; a second run there is refused. The processes of one run share it: the first holds it.

    Raises:
        CdmppError: another run writes there.
    """
    return writing(folder, "training") if is_rank_zero() else nullcontext()


def local_rank() -> int:
    """Number of this process on its machine, and of the GPU that it uses."""
    return int(os.environ.get("LOCAL_RANK", "0"))
