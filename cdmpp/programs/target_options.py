"""Which options a TVM target from somebody else may have. No TVM here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.language import is_text

_TARGET_KINDS = {"llvm", "cuda", "rocm", "metal", "vulkan", "opencl", "webgpu", "ext_dev", "hexagon"}
_TARGET_KEYS = set(
    """kind keys tag device model libs host arch mcpu mtriple mattr mabi mfloat-abi num-cores opt-level vector-width
    max_threads_per_block max_shared_memory_per_block max_local_memory_per_block max_num_threads max_threads
    max_function_args thread_warp_size registers_per_block l2_cache_size_bytes fast-math fast-math-nnan fast-math-ninf
    fast-math-nsz fast-math-arcp fast-math-contract fast-math-reassoc unpacked-api interface-api mcode-object-version
    from_device feature""".split()
)
"""Not ``cl-opt`` and ``jit``: options of LLVM itself, some of which name files."""


def check_target(target: Any, where: str) -> None:
    """Raise ``UnsupportedProgramError`` for a target (a dict) with options beyond those that describe a device."""
    if not isinstance(target, dict) or target.get("kind") not in _TARGET_KINDS:
        kind = target.get("kind") if isinstance(target, dict) else target
        raise UnsupportedProgramError(
            f"{where}: a target is a dictionary with a kind, given {str(kind)[:60]}; "
            f"known: {', '.join(sorted(_TARGET_KINDS))}"
        )
    for key, value in target.items():
        if key not in _TARGET_KEYS:
            raise UnsupportedProgramError(f"{where}: the target option {str(key)[:60]!r} is not known here")
        if key == "host":
            check_target(value if isinstance(value, dict) else {"kind": value}, where)
        elif not all(is_text(text) for text in texts_in(value)):
            raise UnsupportedProgramError(f"{where}: the target's {key} {str(value)[:60]!r} is not made of plain words")


def texts_in(value: Any) -> Iterator[str]:
    """Every string in nested lists and dictionaries, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
