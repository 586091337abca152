"""Products of matrices of ONNX, and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules


def _gemm(node: OnnxNode, x: Any, y: Any, bias: Any = None) -> Any:
    x, alpha, beta = x.t() if node["transA"] else x, node["alpha"], node["beta"]
    if node["transB"] and alpha == beta == 1 and (bias is None or bias.shape == y.shape[:1]):
        return functional.linear(x, y, bias)
    y = y.t() if node["transB"] else y
    if bias is None:
        return x @ y if alpha == 1 else (x @ y) * alpha
    if bias.dim() in (1, 2) and bias.shape[-1] == y.shape[1]:
        return torch.addmm(bias, x, y, beta=beta, alpha=alpha)
    return alpha * (x @ y) + beta * bias


def _einsum(node: OnnxNode, *given: Any) -> Any:
    return torch.einsum(node["equation"], *given)


def _attention(
    node: OnnxNode, q: Any, k: Any, v: Any, mask: Any = None, past_key: Any = None, past_value: Any = None,
    lengths: Any = None,
) -> Any:  # fmt: skip
    """Run fused attention; heads of three axes are taken apart and joined again, those in a cache come first."""
    node.only(softcap=0.0, qk_matmul_output_mode=0)
    if lengths is not None:
        node.refuse("has lengths of its keys that only a run knows")
    if node.outputs[3:] and node.outputs[3]:
        node.refuse("is read for its scores, which fused attention does not give")
    is_flat = q.dim() == 3
    if is_flat:
        heads = node["q_num_heads"], node["kv_num_heads"], node["kv_num_heads"]
        q, k, v = (one.unflatten(-1, (many, -1)).transpose(1, 2) for one, many in zip((q, k, v), heads, strict=True))
    if past_key is not None:
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    causal = bool(node["is_causal"])
    if causal and (mask is not None or past_key is not None):
        node.refuse("is causal and has a mask or a cache besides, which no one call of PyTorch is")
    grouped = q.shape[1] != k.shape[1]
    found = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=node["scale"], enable_gqa=grouped
    )
    return found.transpose(1, 2).flatten(2) if is_flat else found, k, v


def _rotary(node: OnnxNode, x: Any, cosine: Any, sine: Any, places: Any = None) -> Any:
    """Turn pairs of each head, as models of transformers do it."""
    node.only(rotary_embedding_dim=0)
    is_flat = x.dim() == 3
    if is_flat:
        x = x.unflatten(-1, (node["num_heads"], -1)).transpose(1, 2)
    if places is not None:
        cosine, sine = cosine[places], sine[places]
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    one, other = (x[..., ::2], x[..., 1::2]) if node["interleaved"] else x.chunk(2, -1)
    turned = one * cosine - other * sine, sine * one + cosine * other
    out = torch.stack(turned, -1).flatten(-2) if node["interleaved"] else torch.cat(turned, -1)
    return out.transpose(1, 2).flatten(2) if is_flat else out


RULES: Rules = {
    "MatMul": Rule(lambda _, x, y: torch.matmul(x, y)), "Gemm": Rule(_gemm), "Einsum": Rule(_einsum),
    "Attention": Rule(_attention), "RotaryEmbedding": Rule(_rotary),
}  # fmt: skip
