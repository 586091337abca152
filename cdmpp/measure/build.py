"""Scheduled program -> shared library on disk, and what its arguments look like."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.programs.task import Program


def build(program: Program, path: Path) -> None:
    """Compile ``program`` for its target into the shared library ``path``."""
    import tvm

    tvm.compile(program.module, target=program.target).export_library(str(path))


@lru_cache(maxsize=64)
def arguments_of(workload: str) -> list[list[Any]]:
    """``[[shape, dtype], ...]`` of a task's parameters, outputs included."""
    from cdmpp.programs.replay import parse_workload

    main = parse_workload(workload)["main"]
    return [[[int(extent) for extent in param.shape], str(param.dtype)] for param in main.params]
