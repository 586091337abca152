"""BatchNorm of an exported model, folded into the weights of the convolution before it, as inference engines do."""

from __future__ import annotations

from typing import Any

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


def fold_batch_norm(exported: Any) -> int:
    """Change a ``torch.export.ExportedProgram`` in place; the model that it came from keeps its weights.

    Folded are convolutions that only a BatchNorm in eval mode reads, and that share no weights. Returns how many.
    """
    import torch

    folded = 0
    with torch.no_grad():
        for node in list(exported.graph.nodes):
            if _operator(node) == "batch_norm":
                folded += _fold(exported, node)
    exported.graph_module.recompile()
    return folded


def _fold(exported: Any, norm: Any) -> bool:
    import torch

    convolution, gamma, beta, mean, variance, training = norm.args[:6]
    kind = _operator(convolution)
    grouped = [*convolution.args[3:], *[1] * 7][3] != 1  # only asked of transposed convolutions
    if training or kind not in _CONVOLUTIONS or len(convolution.users) != 1 or ("transpose" in kind and grouped):
        return False
    weight, bias = [*convolution.args[1:3], None][:2]
    values = [_value(exported, node) for node in (weight, bias, gamma, beta, mean, variance)]
    into = bias if bias is not None else beta
    if any(len(node.users) != 1 or _name(exported, node) is None for node in (weight, into) if node is not None):
        return False
    kernel, offset, scale, shift, center, spread = values
    if into is None or kernel is None or center is None or spread is None:
        return False
    factor = (1.0 if scale is None else scale) * torch.rsqrt(spread + norm.args[7])
    offset = ((0.0 if offset is None else offset) - center) * factor + (0.0 if shift is None else shift)
    along = [1, -1] if "transpose" in kind else [-1, 1]
    for node, value in ((weight, kernel * factor.reshape(along + [1] * (kernel.ndim - 2))), (into, offset)):
        exported.state_dict[_name(exported, node)] = torch.nn.Parameter(value.to(kernel.dtype), requires_grad=False)
    convolution.args = (*convolution.args[:2], into, *convolution.args[3:])
    norm.replace_all_uses_with(convolution)
    exported.graph.erase_node(norm)
    return True


def _operator(node: Any) -> str:
    """``conv2d`` of ``aten.conv2d.default``; empty for what is no call."""
    return getattr(node.target, "__name__", "").split(".")[0] if getattr(node, "op", "") == "call_function" else ""


def _name(exported: Any, node: Any) -> str | None:
    """Name of the parameter that a placeholder stands for; None if it stands for something else."""
    return exported.graph_signature.inputs_to_parameters.get(node.name)


def _value(exported: Any, node: Any) -> Any:
    if node is None:
        return None
    signature = exported.graph_signature
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    return exported.state_dict.get(name, exported.constants.get(name))
