"""Functions that keep of attention what the kernel does that was chosen, whatever device the tensors are said to be on.

Fused kernels keep queries, keys, values, the result, its log-sum-exp, and with dropout the state of random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cdmpp.operators.aten_attention import ATTENTION
from cdmpp.operators.attention_rules import CPU, MATH


def attention_function(node: Any) -> Callable[..., Any] | None:
    """Return the function of a node for which a kernel was chosen, with the arguments of the node; else None."""
    chosen = node.meta.get(ATTENTION)
    if chosen is None:
        return None
    if chosen.backend == MATH:
        return _by_math
    if chosen.place == CPU:
        return _flash_on_cpu
    return {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn}[chosen.backend]


def _by_math(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    import torch

    made = torch.ops.aten._scaled_dot_product_attention_math
    mask = _floats(attn_mask, query)
    return made(query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]


def _flash_on_cpu(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **_: Any,
) -> Any:  # fmt: skip
    import torch

    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(query, key, value, dropout_p, is_causal, attn_mask=_floats(attn_mask, query), scale=scale)[0]


def _flash(
    query: Any, key: Any, value: Any, _: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **__: Any,
) -> Any:  # fmt: skip
    import torch

    inner = query.shape[-1]
    if more := -inner % 8:
        query, key, value = (torch.nn.functional.pad(one, (0, more)) for one in (query, key, value))
    scale = 1 / math.sqrt(inner) if scale is None else scale
    fused = torch.ops.aten._scaled_dot_product_flash_attention
    result = fused(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return result[..., :inner] if more else result


def _efficient(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **_: Any,
) -> Any:  # fmt: skip
    import torch

    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, _floats(attn_mask, query), True, dropout_p, is_causal, scale=scale)[0]


def _cudnn(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, **_: Any,
) -> Any:  # fmt: skip
    import torch

    fused = torch.ops.aten._scaled_dot_product_cudnn_attention
    mask = _floats(attn_mask, query)
    return fused(query, key, value, mask, True, dropout_p, is_causal, False, scale=scale)[0]


def _floats(mask: Any, query: Any) -> Any:
    """A mask of floats; one of truths becomes one, as ATen makes it before any kernel."""
    import torch

    return torch.zeros_like(mask, dtype=query.dtype) if mask is not None and mask.dtype == torch.bool else mask
