"""TrainingFile: a training function in a file of the user, as processes that start anew can find it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.errors import UsageError
from cdmpp.network.source.user_code import check_written, function_of

if TYPE_CHECKING:
    from cdmpp.synchrony.processes.training import Training

_SAYS = ("makes the training", "returns parameters and batch()")


@dataclass(frozen=True)
class TrainingFile:
    """The function ``name`` of a file; each process that calls it runs the file. The file is the user's own code."""

    path: str
    name: str

    def __call__(self, seed: int, worker: int, workers: int) -> Training:
        """Return the training of a worker; ``CdmppError``: no such file or function, or an error in the file."""
        found: Training = function_of(Path(self.path), self.name, *_SAYS)(seed, worker, workers)
        return found


def training_file(text: str) -> TrainingFile:
    """Read ``FILE.py:FUNCTION``.

    Raises:
        UsageError: it is written otherwise.
        UsageError: the function cannot take a seed, the number of the worker and that of all workers.
        CdmppError: no such file or function, or an error in the file.
    """
    file, name = training_place(text)
    function = function_of(file, name, *_SAYS)
    try:
        inspect.signature(function).bind(0, 0, 1)
    except TypeError as error:
        raise UsageError(f"{file.name}:{name} is called as {name}(seed, worker, workers), but: {error}") from None
    return TrainingFile(str(file.resolve()), name)


def training_place(text: str) -> tuple[Path, str]:
    """Divide ``FILE.py:FUNCTION`` into the file and the name of a function that its text has; nothing is run.

    Raises:
        UsageError: it is written otherwise.
        CdmppError: no such file, or no such function in its text.
    """
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        raise UsageError(f"{text!r}: expected FILE.py:FUNCTION, a function train(seed, worker, workers)")
    file = Path(path).expanduser()
    check_written(file, name, *_SAYS)
    return file, name
