"""Artifacts: libraries of a search's programs, compiled once, to be read by the model and to be measured."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from cdmpp.data.derive_worker import unpacked
from cdmpp.errors import CdmppError
from cdmpp.platform.cores import cores
from cdmpp.platform.extension import extension
from cdmpp.platform.workers import Worker, run_many
from cdmpp.tuning.build_worker import COMMAND

_KEPT = 4096
"""Programs that are remembered, with libraries of 20 kB where nobody has measured them yet."""


@dataclass(frozen=True)
class Artifact:
    """Compiling one program gives this."""

    library: Path | None
    """The only file of its folder; None: it does not compile."""
    code: np.ndarray | None = None
    """(CODE_WIDTH,) float32; None: not wanted, or it cannot be read."""
    fault: str = ""
    """The reason for which there is no library; empty if there is one."""


class Artifacts:
    """It compiles in child processes that stay. Libraries that nobody took go with this object."""

    def __init__(self, core: str, limit_s: float = 10.0, workers: int | None = None) -> None:
        """Check what reads machine code; compiling begins later.

        Args:
            core: whose code vectors are wanted, empty for none.
            limit_s: longest seconds for one program.
            workers: processes; None: one a core.

        Raises:
            MissingToolError: the compiled extension that reads machine code was not built, or of other sources.
        """
        if core:  # a search that has begun swallows all errors
            extension("cpu_code")
        self.core, self.limit_s = core, limit_s
        self._workers = [Worker(COMMAND) for _ in range(workers or cores())]
        self._folder = Path(tempfile.mkdtemp(prefix="cdmpp-tuning-"))
        self._made: OrderedDict[int, Artifact] = OrderedDict()
        self._taken: set[int] = set()
        self._count = 0
        weakref.finalize(self, _end, self._workers, self._folder)

    def compiled(self, modules: Mapping[int, Any], target: Any) -> dict[int, Artifact]:
        """Compile scheduled ``modules``, by structural hash; what was compiled before is not compiled again."""
        self._compile({key: module for key, module in modules.items() if key not in self._made}, target)
        found = {key: self._made[key] for key in modules}
        while len(self._made) > _KEPT:
            self._forget(next(iter(self._made)))
        return found

    def taken(self, key: int, module: Any, target: Any) -> Artifact:
        """Compile one program as ``compiled`` does; from now on the library is the caller's, to run and to delete."""
        if key not in self._made or key in self._taken:
            self._compile({key: module}, target)
        self._taken.add(key)
        return self._made[key]

    def code(self, key: int) -> np.ndarray | None:
        """Return the code vector of a program that was compiled, where it could be read."""
        return self._made[key].code if key in self._made else None

    def _compile(self, modules: Mapping[int, Any], target: Any) -> None:
        keys, requests = list(modules), []
        for key in keys:
            self._count += 1
            path = self._folder / str(self._count) / "program.so"
            module = tvm.ir.save_json(modules[key])
            requests.append(
                {"op": "build", "module": module, "target": str(target), "core": self.core, "path": str(path)}
            )
        missing = set(keys)
        try:
            for index, reply in run_many(self._workers, requests, self.limit_s):
                missing.discard(keys[index])
                self._taken.discard(keys[index])
                self._made[keys[index]] = _artifact(reply, Path(requests[index]["path"]))
        except CdmppError as error:  # no worker starts: failed builds are noted by a search, an exception ends it
            for key in missing:
                self._taken.discard(key)
                self._made[key] = Artifact(None, fault=str(error))

    def _forget(self, key: int) -> None:
        library = self._made.pop(key).library
        if library is not None and key not in self._taken:
            shutil.rmtree(library.parent, ignore_errors=True)
        self._taken.discard(key)


def _artifact(reply: Mapping[str, Any], path: Path) -> Artifact:
    if "cause" in reply:
        return Artifact(None, fault=str(reply.get("message", reply["cause"])))
    return Artifact(path, unpacked(reply["code"])["code"] if "code" in reply else None)


def _end(workers: list[Worker], folder: Path) -> None:
    for worker in workers:
        worker.stop()
    shutil.rmtree(folder, ignore_errors=True)
