"""All that `cdmpp` reads of TVMScript and targets; whatever is not here is refused (docs/security.md). No TVM here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from cdmpp.errors import UnsupportedProgramError

DECLARATIONS = frozenset(
    """Buffer handle match_buffer alloc_buffer alloc_local alloc_shared decl_buffer sblock_alloc_buffer let
    type_annotation""".split()
)
LOOPS = frozenset("serial parallel vectorized unroll thread_binding grid".split())
SCOPES = frozenset("sblock init attr launch_thread Let".split())
"""Names that may stand in a ``with``."""
STATEMENTS = frozenset("where reads writes sblock_attr func_attr evaluate bind env_thread assume buffer_store".split())
AXES = frozenset("spatial reduce scan opaque remap".split())
OPERATIONS = frozenset(
    """abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clz copysign cos
    cosh dp4a erf exp exp10 exp2 fabs floor fma fmod hypot if_then_else isfinite isinf isnan ldexp likely log log10
    log1p log2 nearbyint nextafter popcount pow q_multiply_shift q_multiply_shift_per_axis reinterpret round rsqrt
    shift_left shift_right sigmoid sin sinh sqrt tan tanh trunc vscale
    address_of tvm_access_ptr tvm_thread_allreduce tvm_storage_sync tvm_warp_shuffle tvm_warp_shuffle_up
    tvm_warp_shuffle_down tvm_warp_activemask tvm_fill_fragment tvm_load_matrix_sync tvm_mma_sync
    tvm_store_matrix_sync""".split()
)
"""Functions of tensor programs: arithmetic, and what GPU threads do together. None calls foreign code."""
EXPRESSIONS = OPERATIONS | frozenset(
    """Add And Broadcast Cast Div EQ FloorDiv FloorMod GE GT LE LT Max Min Mod Mul NE Not Or Ramp Select Shuffle Sub
    bool boolean cast ceildiv floordiv floormod infinity max max_value min min_value truncdiv truncmod void""".split()
)
CALLS = DECLARATIONS | LOOPS | SCOPES | STATEMENTS | EXPRESSIONS
DTYPE = re.compile(r"(bool|handle|(int|uint|float|bfloat)\d{1,3}(_e\dm\d\w*)?)(x\d{1,4})?")
TEXT = re.compile(r"[\w.:/,+*= \-]{0,400}")
"""Names, types and hints. No bracket, quote or line break: nothing in a string can be an expression of Python or C."""
METHODS = frozenset({"astype", "data", "shape", "dtype"})
"""Attributes of buffers and values."""

# Other pragmas bring in text or files for the compiler (``pragma_import_llvm``).
_PRAGMAS = {f"pragma_{name}" for name in ("auto_unroll_max_step", "unroll_explicit", "loop_partition_hint", "scope")}
_KEY = re.compile(r"[A-Za-z_][\w.]{0,199}")
_RENAMED = {
    "block": "T.sblock, in a function that @T.prim_func(s_tir=True) declares",
    "block_attr": "T.sblock_attr",
    "allocate": "T.alloc_buffer",
    "allocate_const": "a buffer among the parameters: the values do not matter to the latency",
    "Bind": "T.bind",
}


def is_call(name: str) -> bool:
    """Return True if ``T.name`` may be called."""
    return name in CALLS or DTYPE.fullmatch(name) is not None


def is_text(text: str) -> bool:
    """Return True if a string may stand in a program."""
    return TEXT.fullmatch(text) is not None


def is_attribute_key(key: str) -> bool:
    """Return True if an annotation or attribute may have this name."""
    return _KEY.fullmatch(key) is not None and (not key.startswith("pragma_") or key in _PRAGMAS)


def is_operation(name: str) -> bool:
    """Return True if a program may call the TVM operator ``name``, such as ``tirx.exp``."""
    room, _, operation = name.partition(".")
    return room in ("tirx", "prim") and operation in OPERATIONS


def hint(name: str) -> str:
    """Say what to write in the place of ``T.name``; empty where nothing is near."""
    if name in _RENAMED:
        return f": it is now {_RENAMED[name]}"
    near = difflib.get_close_matches(name, sorted(CALLS), n=1)
    return f": did you mean T.{near[0]}?" if near else ""


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
    """Yield every string in nested lists and dictionaries, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
