"""Fused attention as an operator: what it computes, reads and writes, forward and backward, from its sizes alone."""

from __future__ import annotations

from collections.abc import Mapping

BACKENDS = ("flash", "efficient", "cudnn")
"""Fused kernels of ``scaled_dot_product_attention``; ``math`` is the calls that nobody fused."""
SIZES = ("batch", "heads", "rows", "cols", "inner")
OPTIONS = {"kv_heads": 0, "value": 0, "mask": 0, "causal": 0, "dropout": 0}
"""``kv_heads`` 0: as many heads as the queries have; ``value`` 0: the head size of values is that of queries;
``mask``: elements of a mask that is added to the scores, as many as lie in memory."""
FLAGS = ("causal", "dropout")
BACKWARD = "_backward"
_ROWS = 128
"""Rows of queries that a block of the kernels has."""


def kind_name(backend: str) -> str:
    """Return ``flash_attention`` of ``flash``."""
    return f"{backend}_attention"


NAMES = tuple(f"{kind_name(backend)}{phase}" for backend in BACKENDS for phase in ("", BACKWARD))


def is_backward(name: str) -> bool:
    """Return True for an operator that makes the gradients of queries, keys and values."""
    return name.endswith(BACKWARD)


def backend_of_name(name: str) -> str:
    """Return ``flash`` of ``flash_attention_backward``."""
    return name.removesuffix(BACKWARD).removesuffix("_attention")


def attended_pairs(rows: int, cols: int, causal: bool) -> int:
    """Count pairs of a query and a key that it sees; query i sees keys 0 to i where ``causal``, as torch aligns it."""
    if not causal:
        return rows * cols
    full = min(rows, cols)
    return full * (full + 1) // 2 + (rows - full) * cols


def kv_heads(sizes: Mapping[str, int]) -> int:
    """Return the heads of keys and values."""
    return sizes["kv_heads"] or sizes["heads"]


def value_size(sizes: Mapping[str, int]) -> int:
    """Return the head size of values."""
    return sizes["value"] or sizes["inner"]


def attention_flops(name: str, sizes: Mapping[str, int]) -> float:
    """Count multiply-adds as two, for pairs that are attended alone.

    Forward: scores, and weighted values. Backward five products, as FlashAttention-2 (arXiv 2307.08691) makes them:
    scores again; gradients of values, weights, queries and keys. What softmax and dropout compute is left out.
    """
    pairs = attended_pairs(sizes["rows"], sizes["cols"], bool(sizes["causal"]))
    inner, value = sizes["inner"], value_size(sizes)
    each = 3 * inner + 2 * value if is_backward(name) else inner + value
    return 2.0 * sizes["batch"] * sizes["heads"] * pairs * each


def read_elements(name: str, sizes: Mapping[str, int], element_bytes: int) -> float:
    """Count what is read once each: keys and values are those of their own heads; statistics count by their bytes."""
    queries, outputs, keys, values = _tensors(sizes)
    read = float(queries + keys + values + sizes["mask"])
    if is_backward(name):
        read += 2 * outputs + _statistics(sizes, element_bytes)  # result, its gradient
    return read


def written_elements(name: str, sizes: Mapping[str, int], element_bytes: int) -> float:
    """Count what is written: forward the result and a float32 a row (the log-sum-exp), backward three gradients."""
    queries, outputs, keys, values = _tensors(sizes)
    if is_backward(name):
        return float(queries + keys + values)
    return float(outputs + _statistics(sizes, element_bytes))


def workspace_bytes(name: str, sizes: Mapping[str, int], element_bytes: int) -> int:
    """Count bytes that a backward kernel holds beside its results.

    The gradient of queries in float32 and a float32 a row, rows filled up; gradients of keys and values for each head
    of queries before those of a group are summed. Of cuDNN's workspace the same is taken.
    """
    if name not in NAMES or not is_backward(name):
        return 0
    batch, heads, rows = sizes["batch"], sizes["heads"], -(-sizes["rows"] // _ROWS) * _ROWS
    wide = -(-sizes["inner"] // 32) * 32
    held = 4 * batch * heads * rows if element_bytes >= 4 else 4 * batch * heads * rows * (wide + 1)
    if kv_heads(sizes) != heads:
        held += element_bytes * batch * heads * sizes["cols"] * (sizes["inner"] + value_size(sizes))
    return held


def _tensors(sizes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Elements of queries, outputs, keys and values."""
    batch, heads, own = sizes["batch"], sizes["heads"], kv_heads(sizes)
    rows, cols, inner, value = sizes["rows"], sizes["cols"], sizes["inner"], value_size(sizes)
    ours, theirs = batch * heads * rows, batch * own * cols
    return ours * inner, ours * value, theirs * inner, theirs * value


def _statistics(sizes: Mapping[str, int], element_bytes: int) -> float:
    return sizes["batch"] * sizes["heads"] * sizes["rows"] * 4 / element_bytes
