"""The extractor, in C++: numbers of tensor programs, read from TVM's own objects."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.errors import UnsupportedProgramError
from cdmpp.platform.extension import extension


@functools.cache
def native_extract() -> Any:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    path = extension("extract")
    import tvm_ffi

    tvm_ffi.register_error("UnsupportedProgramError", UnsupportedProgramError)
    return tvm_ffi.load_module(str(path))


def summarize(function: Any, gpu: bool) -> CompactAST:
    """Read the compact AST of a lowered PrimFunc, or of the loop program of an operator.

    Raises:
        UnsupportedProgramError: no store, a symbolic shape or extent, a while loop, loops nested too deep, or, for a
            GPU, a loop nest without threads.
    """
    return _ast(_extractor()(function, gpu), gpu)


@functools.cache
def _extractor() -> Any:
    return native_extract()["extract"]


def refuse_deep(function: Any, most: int) -> None:
    """Raise ``UnsupportedProgramError`` where an expression that is stored is nested more than ``most`` deep."""
    native_extract()["refuse_deep"](function, most)


def read_scheduled(
    modules: Sequence[Any], passes: tuple[Any, Any], gpu: bool, most_deep: int, threads: int, exact: bool
) -> list[CompactAST | None]:
    """Read each scheduled IRModule as it is; None where it has to be lowered, or is to be refused.

    ``passes``: TVM's, for what schedules of CPUs seldom hold, and those that simplify a store in doubt.
    ``exact``: None, too, where it may differ from what ``summarize`` reads of the lowered program.
    """
    found = native_extract()["extract_scheduled"](list(modules), *passes, gpu, most_deep, threads, exact)
    return [_ast(data, gpu) if len(data) else None for data in map(bytes, found)]


def doubts(module: Any, passes: tuple[Any, Any], gpu: bool, most_deep: int) -> list[str]:
    """Return all reasons why ``read_scheduled`` does not read a module exactly; none where it does."""
    return str(native_extract()["doubts"](module, *passes, gpu, most_deep)).splitlines()


def feature_names() -> dict[str, tuple[str, ...]]:
    """Return the features that C++ fills, in its order, by the name of their group: ``OPS``, ``CONTEXT`` and so on."""
    lines = str(native_extract()["feature_names"]()).splitlines()
    return {group: tuple(names) for group, *names in map(str.split, lines)}


def _ast(numbers: bytes, gpu: bool) -> CompactAST:
    data = bytearray(numbers)  # in the layout that ``extract.cpp`` documents
    leaves, kernels, leaf_width, kernel_width = np.frombuffer(data, np.int32, 4).tolist()
    places = np.frombuffer(data, np.int32, 3 * leaves, 16).reshape(3, leaves)
    features, end = np.frombuffer(data, np.float32, offset=16 + 12 * leaves), leaves * leaf_width
    return CompactAST(
        features[:end].reshape(leaves, leaf_width),
        places[0],
        places[1],
        places[2],
        features[end:].reshape(kernels, kernel_width),
        "gpu" if gpu else "cpu",
    )
