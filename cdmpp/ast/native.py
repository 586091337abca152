"""The C++ twin of the extractor: compiled on first use, kept in the cache, and optional."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.ast import access, arithmetic, kernel_features, leaf, leaf_features, misses, points, walk
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.features import names
from cdmpp.platform.native_library import built_once
from cdmpp.platform.paths import cache_root

SOURCES = Path(__file__).parent / "native"
STRUCTS = {
    "ContextFeatures": leaf_features.CONTEXT,
    "AccessFeatures": leaf_features.ACCESS,
    "LoopFeatures": leaf_features.LOOP,
    "KernelFeatures": kernel_features.KERNEL,
}
"""C++ struct -> the features that it holds."""
_SHARED = {
    walk: "UNROLL_MAX_DEPTH",
    points: "WARP N_RANDOM",
    access: "SECTOR_BYTES BANKS LINE_BYTES WIDEST_ACCESS_BYTES",
    arithmetic: "MAX_ENUMERATED",
    leaf: "SHORT_REGION_TRIPS AUTO_LANES",
    leaf_features: "N_LOADS N_LOOPS",
    misses: "SETS PAGE_BYTES",
}
FLAGS = (
    "-O3",
    "-std=c++20",  # fields by name, in their order
    "-Werror=missing-field-initializers",
    "-fwrapv",  # numpy integers wrap
    "-ffp-contract=off",  # the readable version rounds after every operation
    "-fno-math-errno",
)


def constants_header() -> str:
    """C++ text of what both versions share: constants, and structs of features that C++ must fill in their order."""
    lines = ["#pragma once", "namespace cdmpp {"]
    for module, constants in _SHARED.items():
        for name in constants.split():
            value = getattr(module, name)
            kind = "double" if name.endswith("_BYTES") and name != "SECTOR_BYTES" else "int"
            lines.append(f"constexpr {kind} {name} = {value};")
    for name in ("CACHE_KIB", "CROWDED_KIB", "PAGE_ENTRIES"):
        lines.append(f"constexpr double {name}[] = {{{', '.join(map(str, getattr(leaf_features, name)))}}};")
    lines.append(f"enum Op {{ {', '.join(f'OP_{op.name}' for op in leaf_features.OPS)}, N_OPS }};")
    for name, features in STRUCTS.items():
        plain = ", ".join(str(feature.plain).lower() for feature in features)
        fields = f"double {', '.join(names(features))}; static constexpr bool plain[] = {{{plain}}};"
        lines.append(f"struct {name} {{ {fields} }};")
    return "\n".join([*lines, "}  // namespace cdmpp", ""])


def native_extract() -> Any | None:
    """The compiled library, or None (with one warning) where it cannot be had; compiles (about 20 s) on first use."""
    return None if os.environ.get("CDMPP_NATIVE", "1") == "0" else _loaded(cache_root())


@functools.cache
def _loaded(_cache: Path) -> Any | None:
    """Of the library in a cache: another one, as after a change of ``$CDMPP_CACHE``, has to get its own."""
    try:
        import tvm_ffi
        import tvm_ffi.cpp

        constants = constants_header()

        def build(folder: Path) -> Path:
            (folder / "constants.h").write_text(constants)
            built = tvm_ffi.cpp.build(
                "cdmpp_extract",
                cpp_files=[str(SOURCES / "extract.cpp")],
                extra_cflags=list(FLAGS),
                extra_include_paths=[str(folder), str(SOURCES)],
                build_directory=str(folder),
            )
            return Path(built)

        settings = (constants, FLAGS, tvm_ffi.__version__, tvm_ffi.__file__)
        return tvm_ffi.load_module(str(built_once("extract", SOURCES, settings, build)))
    except Exception as error:  # no compiler, no ninja, no place to write, a compiler that fails
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(
            f"the native extractor could not be built ({first}); the Python version gives the same numbers, slower. "
            "It needs g++ and ninja; CDMPP_NATIVE=0 silences this.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def summarise_native(function: Any, gpu: bool) -> CompactAST | None:
    """Compact AST of a lowered PrimFunc; None without a compiled library, and where the C++ walk refuses it."""
    library = native_extract()
    if library is None:
        return None
    try:
        return _ast(library["extract"](function, gpu), gpu)
    except Exception:  # whatever C++ meets, the readable walk refuses too and says why
        return None


def read_scheduled(
    modules: Sequence[Any], passes: Any, gpu: bool, deepest: int, threads: int
) -> list[CompactAST | None]:
    """Compact ASTs of scheduled IRModules as they are; None as above, and where one has to be lowered."""
    library = native_extract()
    if library is None:
        return [None] * len(modules)
    found = library["extract_scheduled"](list(modules), passes, gpu, deepest, threads)
    return [_ast(data, gpu) if len(data) else None for data in map(bytes, found)]


def _ast(numbers: bytes, gpu: bool) -> CompactAST:
    data = bytearray(numbers)  # in the layout that ``extract.cpp`` documents
    leaves, kernels, leaf_width, kernel_width = (int(n) for n in np.frombuffer(data, np.int32, 4))
    places = np.frombuffer(data, np.int32, 3 * leaves, 16).reshape(3, leaves)
    features = np.frombuffer(data, np.float32, offset=16 + 12 * leaves)
    of_leaves, of_kernels = np.split(features, [leaves * leaf_width])
    return CompactAST(
        of_leaves.reshape(leaves, leaf_width),
        places[0],
        places[1],
        places[2],
        of_kernels.reshape(kernels, kernel_width),
        "gpu" if gpu else "cpu",
    )
