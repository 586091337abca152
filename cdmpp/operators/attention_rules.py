"""Which kernel ``scaled_dot_product_attention`` takes: torch's own rules, for a call and the device that runs it.

As ATen decides it, for tensors that are not nested, with the CUDA 13 wheels of PyPI, whose cuDNN is newer than 9.15.1.
AMD GPUs follow the same rules where AOTriton has kernels for them.

Sources: rules of types, axes, masks, batches, heads, empty sequences and strides were compared line by line with
``ATen/native/transformers/sdp_utils_cpp.h`` in the wheel of torch 2.13.0 (commit cf30153c). Those of GPUs, and the
order of each kernel's rules, stand in ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``, which no wheel holds:
they were read from other versions, 2.10 and later. A source after 2.13 (commit 001f694a) differs in three places:
efficient attention takes grouped heads, which the header of 2.13 cannot say yet; it asks for aligned offsets in
storage; and cuDNN newer than 9.22 takes heads up to 256 on sm_100 too. The rest is the same there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_layout import arguments_of, shape_of
from cdmpp.operators.attention import BACKENDS

MATH = "math"
ASKED = ("auto", *BACKENDS, MATH)
"""What a user may ask for; ``auto``: what torch takes."""
CPU, NEWEST = "cpu", "sm_90"
"""Places that a call runs at: a CPU, or the architecture of a GPU; a GPU that is not known counts as ``NEWEST``."""
_AOTRITON = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
_HALVES = ("float16", "bfloat16")


class AttentionCall(NamedTuple):
    """These decide about a call of ``scaled_dot_product_attention``."""

    query: Any
    """A tensor, whose values play no part; so are ``key`` and ``value``."""
    key: Any
    value: Any
    mask: Any = None
    """A tensor, or None."""
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False
    """``enable_gqa`` is given."""
    trains: bool = False
    """A gradient goes through queries, keys or values."""
    mask_trains: bool = False

    @property
    def dtype(self) -> str:
        """Return the type of the queries."""
        return str(self.query.dtype).removeprefix("torch.")


def attention_call(node: Any, trains: bool = False, mask_trains: bool = False) -> AttentionCall:
    """Read the call of a node of an exported graph; a gradient goes through it where ``trains``, or its mask."""
    given = arguments_of(node)
    return AttentionCall(
        given["query"], given["key"], given["value"], given.get("attn_mask"), float(given.get("dropout_p", 0.0)),
        bool(given.get("is_causal")), bool(given.get("enable_gqa")), trains, mask_trains,
    )  # fmt: skip


def backend_of(call: AttentionCall, place: str = NEWEST, asked: str = "auto") -> str:
    """Return ``flash``, ``efficient``, ``cudnn`` or ``math``.

    Args:
        call: what is attended to what.
        place: ``cpu`` or the architecture of a GPU, such as ``sm_80``.
        asked: one of ``ASKED``.

    Raises:
        UnsupportedProgramError: what was asked for cannot run this call there; it says why.
    """
    order = _order(place)
    if asked == "auto":
        return next((one for one in order if not why_not(one, call, place)), MATH)
    if asked == MATH:
        return MATH
    if why := why_not(asked, call, place):
        able = [one for one in (*order, MATH) if not why_not(one, call, place)]
        raise UnsupportedProgramError(
            f"attention by {asked} cannot run here: {why}; this call can run by {', '.join(dict.fromkeys(able))}"
        )
    return asked


def why_not(backend: str, call: AttentionCall, place: str) -> str:
    """Return the first reason for which a kernel cannot run a call; empty if it can."""
    if backend == MATH:
        return ""
    rules = _ON_CPU if place == CPU else _ON_GPU
    if backend not in rules:
        return f"{'a CPU' if place == CPU else place} has no such kernel"
    return next((why for rule in rules[backend] if (why := rule(call, place))), "")


def _order(place: str) -> tuple[str, ...]:
    if place == CPU:
        return ("flash",)
    if place in ("sm_90", "sm_100", "sm_103"):
        return ("cudnn", "flash", "efficient")
    return ("flash", "efficient")


def capability_of(place: str) -> tuple[int, int]:
    """Return (9, 0) of ``sm_90``; (0, 0) of what is no GPU of NVIDIA."""
    found = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", NEWEST if place == "gpu" else place)
    return (int(found[1]), int(found[2])) if found else (0, 0)


_Rule = Callable[[AttentionCall, str], str]


def _four_axes(call: AttentionCall, place: str) -> str:
    axes = {one.dim() for one in (call.query, call.key, call.value)}
    return "" if axes == {4} else "queries, keys and values need four axes"


def _same_batch(call: AttentionCall, place: str) -> str:
    return "" if len({shape_of(one)[0] for one in _three(call)}) == 1 else "batches differ"


def _heads(call: AttentionCall, place: str) -> str:
    heads, *own = (shape_of(one)[1] for one in _three(call))
    if call.grouped:
        return (
            "" if own[0] == own[1] and heads % own[0] == 0 else "heads of keys and values must divide those of queries"
        )
    return _same_heads(call, place)


def _same_heads(call: AttentionCall, place: str) -> str:
    return (
        "" if len({shape_of(one)[1] for one in _three(call)}) == 1 else "it needs as many heads of keys as of queries"
    )


def _some(call: AttentionCall, place: str) -> str:
    return "" if shape_of(call.query)[2] and shape_of(call.key)[2] else "a sequence is empty"


def _dense(call: AttentionCall, place: str) -> str:
    return _strides(call, place, shape_of(call.query)[-1] == 1)


def _strictly_dense(call: AttentionCall, place: str) -> str:
    return _strides(call, place, False)


def _strides(call: AttentionCall, place: str, alone: bool) -> str:
    given = [] if alone else [*_three(call)]
    masks = [call.mask] if call.mask is not None and place != CPU else []
    return "" if all(one.stride()[-1] == 1 for one in (*given, *masks)) else "the last axis must be dense in memory"


def _no_mask(call: AttentionCall, place: str) -> str:
    return "it takes no mask" if call.mask is not None else ""


def _mask_fits(call: AttentionCall, place: str) -> str:
    if call.mask is None:
        return ""
    if call.mask_trains:
        return "its mask is trained"
    (batch, heads, rows, _), cols, shape = shape_of(call.query), shape_of(call.key)[2], shape_of(call.mask)
    wanted = (batch, heads, rows, cols)[-len(shape) :]
    fits = len(shape) in (2, 4) and all(a in (1, b) for a, b in zip(shape, wanted, strict=True))
    return "" if fits else "its mask must have two or four axes of the scores' sizes, or 1"


def _no_dropout(call: AttentionCall, place: str) -> str:
    return "it drops no weights" if call.dropout > 0 else ""


def _one_head_size(call: AttentionCall, place: str) -> str:
    return "" if len({shape_of(one)[-1] for one in _three(call)}) == 1 else "head sizes differ"


def _halves(call: AttentionCall, place: str) -> str:
    able = _HALVES if capability_of(place) >= (8, 0) or not place.startswith("sm_") else _HALVES[:1]
    return _types(call, able)


def _cpu_types(call: AttentionCall, place: str) -> str:
    return _types(call, (*_HALVES, "float32", "float64"))


def _efficient_types(call: AttentionCall, place: str) -> str:
    able = ("float16", "float32", "bfloat16") if capability_of(place) >= (8, 0) else ("float16", "float32")
    return _types(call, able if place.startswith("sm_") else (*_HALVES, "float32"))


def _types(call: AttentionCall, able: tuple[str, ...]) -> str:
    given = {str(one.dtype).removeprefix("torch.") for one in _three(call)}
    return (
        "" if len(given) == 1 and given <= {*able} else f"it runs in {', '.join(able)}, not {', '.join(sorted(given))}"
    )


def _since_ampere(call: AttentionCall, place: str) -> str:
    if place.startswith("gfx"):
        return "" if place.startswith(_AOTRITON) else f"AOTriton has no kernel for {place}"
    return "" if capability_of(place) >= (8, 0) else f"it needs sm_80 or newer, not {place}"


def _since_maxwell(call: AttentionCall, place: str) -> str:
    if place.startswith("gfx"):
        return _since_ampere(call, place)
    return "" if capability_of(place) >= (5, 0) else f"it needs sm_50 or newer, not {place}"


def _of_nvidia(call: AttentionCall, place: str) -> str:
    return "" if capability_of(place) >= (8, 0) else f"it needs a GPU of NVIDIA, sm_80 or newer, not {place}"


def _flash_heads(call: AttentionCall, place: str) -> str:
    size, capability = shape_of(call.query)[-1], capability_of(place)
    most = 512 if place.startswith("gfx") else 256
    if size > most:
        return f"head sizes up to {most}, not {size}"
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    fits = size <= 192 or (call.dropout == 0 and size > 224)
    return "" if not (small and call.trains) or fits else f"no gradients of head size {size} on {place}"


def _square(call: AttentionCall, place: str) -> str:
    rows, cols = shape_of(call.query)[2], shape_of(call.key)[2]
    return f"causal with {rows} queries and {cols} keys" if call.causal and rows != cols else ""


def _efficient_heads(call: AttentionCall, place: str) -> str:
    sizes = [shape_of(one)[-1] for one in _three(call)]
    step = _alignment(call, place)
    fits = sizes[0] == sizes[1] and not any(size % step or size < 1 for size in sizes)
    return "" if fits else f"head sizes must be equal multiples of {step}, not {sizes[0]}, {sizes[1]} and {sizes[2]}"


def _alignment(call: AttentionCall, place: str) -> int:
    half, capability = call.dtype in _HALVES, capability_of(place)
    if place.startswith("gfx"):
        return 8 if half else 4
    has_tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    return max(4 if capability >= (8, 0) else 1, (8 if half else 4) if has_tensor_cores else 1)


def _cudnn_shapes(call: AttentionCall, place: str) -> str:
    (batch, heads, rows, inner), cols = shape_of(call.query), shape_of(call.key)[2]
    value = shape_of(call.value)[-1]
    if max(batch, heads) > 65535:
        return "more than 65,535 examples or heads"
    most = 256 if place == NEWEST else 192 if place in ("sm_100", "sm_103") and (inner, value) == (192, 128) else 128
    if max(inner, value) > most or inner % 8 or value % 8:
        return f"head sizes must be multiples of 8 up to {most}, not {inner} and {value}"
    return "a single key" if cols == 1 else "dropout of a single query" if call.dropout and rows == 1 else ""


def _sixteenths(call: AttentionCall, place: str) -> str:
    return "" if float(16 * call.dropout).is_integer() else "dropout in sixteenths"


def _cudnn_heads(call: AttentionCall, place: str) -> str:
    heads, *own = (shape_of(one)[1] for one in _three(call))
    if call.grouped:
        return "heads of keys and values must divide those of queries" if any(heads % one for one in own) else ""
    return _same_heads(call, place)


def _three(call: AttentionCall) -> tuple[Any, Any, Any]:
    return call.query, call.key, call.value


_ON_CPU: dict[str, tuple[_Rule, ...]] = {
    "flash": (
        _no_dropout,
        _four_axes,
        _same_batch,
        _heads,
        _mask_fits,
        _one_head_size,
        _some,
        _strictly_dense,
        _cpu_types,
    )
}
_ON_GPU: dict[str, tuple[_Rule, ...]] = {
    "flash": (
        _four_axes, _no_mask, _one_head_size, _flash_heads, _since_ampere, _square, _halves, _same_batch, _heads, _some,
        _dense,
    ),
    "efficient": (
        _since_maxwell, _four_axes, _efficient_heads, _some, _strictly_dense, _same_batch, _same_heads,
        _efficient_types,
    ),
    "cudnn": (
        _four_axes, _halves, _mask_fits, _of_nvidia, _sixteenths, _some, _dense, _same_batch, _cudnn_heads,
        _cudnn_shapes,
    ),
}  # fmt: skip
"""Kernel -> its conditions, in the order in which ATen asks for them."""
