"""TVM's tensor intrinsics: only those that schedules for a target may use are imported."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from traceback import walk_stack
from typing import Any

_PACKAGE = "tvm.s_tir.tensor_intrin"


@contextmanager
def intrinsics_for(target: Any) -> Iterator[None]:
    """Let a ``TuneContext`` find what schedules for the ``tvm.target.Target`` may use, while the block runs.

    TVM would import those of every kind of processor, which takes some 20 s in each process; those of x86 take 0.1.
    Outside the block nothing stands in the way of importing all.
    """
    parent, name = _PACKAGE.rsplit(".", 1)
    wanted = _of_kind(target)
    if wanted is None or _PACKAGE in sys.modules:
        with _bare_stacks():
            importlib.import_module(_PACKAGE)
        yield
        return
    spec = find_spec(_PACKAGE)
    assert spec is not None
    sys.modules[_PACKAGE] = module_from_spec(spec)  # a package whose own file did not run
    try:
        with _bare_stacks():
            importlib.import_module(f"{_PACKAGE}.{wanted}")
        yield
    finally:
        sys.modules.pop(_PACKAGE, None)
        vars(sys.modules[parent]).pop(name, None)


def _of_kind(target: Any) -> str | None:
    """The module of a target's intrinsics; None: nothing is known, all of them."""
    kind, keys = str(target.kind.name), {str(key) for key in target.keys}
    if kind == "cuda":
        return kind
    if kind != "llvm":
        return None
    return next((key for key in ("arm_cpu", "riscv_cpu") if key in keys), "x86")


@contextmanager
def _bare_stacks() -> Iterator[None]:
    """The import in a tenth of the time: its decorators list the stack, which looks for the source of every frame."""
    real = inspect.stack
    inspect.stack = lambda context=0: [  # type: ignore[assignment]
        inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
        for frame, line in walk_stack(sys._getframe(1))
    ]
    try:
        yield
    finally:
        inspect.stack = real
