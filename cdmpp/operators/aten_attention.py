"""Attention of an exported graph -> the calls that torch makes of it, by the kernel that it chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, distinct_elements, moved
from cdmpp.operators.attention import kind_name
from cdmpp.operators.attention_math import math_calls
from cdmpp.operators.attention_rules import CPU, MATH, NEWEST, AttentionCall, attention_call, backend_of
from cdmpp.operators.operator import EagerOperator

ATTENTION = "cdmpp_attention"
"""Key in the ``meta`` of a node: the ``Chosen`` kernel."""


class Chosen(NamedTuple):
    """This kernel was chosen for a call of ``scaled_dot_product_attention``."""

    backend: str
    """``flash``, ``efficient``, ``cudnn`` or ``math``."""
    place: str
    """``cpu`` or the architecture of a GPU."""
    mask_trains: bool = False
    """A gradient goes through its mask."""


def choose(node: Any, place: str, asked: str, trains: bool, mask_trains: bool) -> None:
    """Choose the kernel of a node, and write it down there; ``UnsupportedProgramError`` as of ``backend_of``.

    Args:
        node: a call of ``scaled_dot_product_attention``.
        place: what runs it, as of ``backend_of``; so is ``asked``.
        trains: a gradient goes through it; ``mask_trains``: through its mask.
    """
    call = attention_call(node, trains, mask_trains)
    node.meta[ATTENTION] = Chosen(backend_of(call, place, asked), place, mask_trains)


def mask_of(node: Any) -> Any | None:
    """Return the node of the mask of such a call; None without."""
    return node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)


def attention_of(node: Any) -> tuple[tuple[EagerOperator, ...], frozenset[int]]:
    """Return the calls of a node, and the places among them of those whose gradient runs nothing.

    Of a node for which nothing was chosen those on the newest GPU.
    """
    chosen = node.meta.get(ATTENTION) or Chosen(backend_of(attention_call(node)), NEWEST)
    call = attention_call(node, mask_trains=chosen.mask_trains)
    return math_calls(call) if chosen.backend == MATH else _fused(call, chosen.backend, chosen.place)


def _fused(call: AttentionCall, backend: str, place: str) -> tuple[tuple[EagerOperator, ...], frozenset[int]]:
    """One kernel, behind those of a mask of truths, and behind copies that fill up head sizes for FlashAttention."""
    batch, heads, rows, inner = shape_of(call.query)
    own, cols, value = shape_of(call.key)[1], shape_of(call.key)[2], shape_of(call.value)[-1]
    before, wide = _mask(call), -(-inner // 8) * 8
    silent = frozenset(range(len(before)))
    if backend == "flash" and place != CPU and inner != wide:
        for one in (call.query, call.key, call.value):
            elements = distinct_elements(one)
            both = elements + elements // inner * wide
            before.append(moved(Traffic(both, both * one.dtype.itemsize), dtype_of(one)))
        inner = value = wide
    sizes = {
        "batch": batch, "heads": heads, "rows": rows, "cols": cols, "inner": inner,
        "kv_heads": 0 if own == heads else own, "value": 0 if value == inner else value,
        "mask": 0 if call.mask is None else distinct_elements(call.mask),
        "causal": int(call.causal), "dropout": int(call.dropout > 0),
    }  # fmt: skip
    return (*before, EagerOperator(kind_name(backend), sizes, dtype_of(call.query))), silent


def _mask(call: AttentionCall) -> list[EagerOperator]:
    """Return the calls that make a mask of floats from one of truths: two numbers, and the choice."""
    if call.mask is None or "bool" not in str(call.mask.dtype):
        return []
    number, elements = EagerOperator("copy", {"rows": 1, "cols": 1}, call.dtype), distinct_elements(call.mask)
    return [number, number, moved(Traffic(2 * elements, elements * (1 + call.query.dtype.itemsize)), call.dtype)]
