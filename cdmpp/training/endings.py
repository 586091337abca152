"""How a training ends early: Ctrl-C, SIGTERM, and another of its processes that is gone."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import lightning.pytorch as pl
import torch.distributed
from lightning.pytorch.callbacks import Callback

from cdmpp.errors import CdmppError
from cdmpp.training.processes import Terminated

log = logging.getLogger(__name__)

_LOST = re.compile(r"gloo|nccl|connection (reset|closed|refused)|broken pipe|socket|TCPStore", re.IGNORECASE)
_FIRST, _LOOK_S = "CDMPP_FIRST_PROCESS", 1.0
_LAST_WORDS_S = 5.0
"""Other processes have so long to say why they end."""


class Endings(Callback):
    """SIGTERM ends a training as Ctrl-C does, at once. Lightning alone would end it with status 0, as if it were done.

    Its own handler also talks to the other processes, which waits forever for one that is gone.
    """

    def __init__(self) -> None:
        self.terminated = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of Lightning's handler, which takes its own away at the end."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._end)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        self.terminated = True
        raise KeyboardInterrupt  # which makes Lightning end the processes that it started

    @contextmanager
    def told(self, trainer: pl.Trainer, folder: Path) -> Iterator[None]:
        """Run ``trainer.fit`` and let it end in ``KeyboardInterrupt``, ``Terminated``, or ``CdmppError``."""
        on_ctrl_c = signal.getsignal(signal.SIGINT)
        try:
            with _with_the_first():
                yield
        except BaseException as error:
            if self.terminated:
                raise Terminated from None
            if isinstance(error, SystemExit) and error.code == 1 and trainer.interrupted:  # Lightning's at Ctrl-C
                # Lightning made this process, and all that it starts from now on, deaf to Ctrl-C.
                signal.signal(signal.SIGINT, on_ctrl_c)
                raise KeyboardInterrupt from None
            if trainer.world_size > 1 and _of_a_lost_process(error):
                _let_others_end()
                raise CdmppError(
                    f"another process of this training is gone ({_line(error)}): see what it said, and whether it had "
                    f"enough memory. The checkpoints in {folder} are whole: the same command goes on from the last one"
                ) from error
            raise


@contextmanager
def _with_the_first() -> Iterator[None]:
    """End when the process ends that started this one: what waits for it to listen does so for half an hour."""
    done = threading.Event()
    first = os.environ.setdefault(_FIRST, str(os.getpid()))  # Lightning hands it to those that it starts

    def watch() -> None:
        while not done.wait(_LOOK_S):
            if os.getppid() != int(first):
                log.error("the first process of this training is gone")
                os._exit(2)  # the main thread is in torch, and hears nothing

    if first != str(os.getpid()):
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        if first == str(os.getpid()):
            del os.environ[_FIRST]


def _of_a_lost_process(error: BaseException) -> bool:
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and not isinstance(error, CdmppError) and bool(_LOST.search(str(error)))


def _let_others_end() -> None:
    """Wait for those that Lightning started. It would kill this process, without a word, where one of them failed."""
    observers: list[Any] = [one for one in threading.enumerate() if one.name == "child-process-observer"]
    for observer in observers:
        children = observer._child_processes.copy()
        observer._child_processes.clear()
        for child in children:
            try:
                child.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                child.kill()


def _line(error: BaseException) -> str:
    """Return the first sentence, without the place in PyTorch's source that Gloo begins with."""
    text = re.sub(r"^\[[^\]]*\] *", "", " ".join(str(error).split()))
    return text.partition(". ")[0][:160] or type(error).__name__
