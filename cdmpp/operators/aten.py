"""Calls of PyTorch's own operators -> library operators: what an exported graph runs, node by node.

A node runs one operator, several (attention that nobody fused), or none: a view moves nothing. Sizes come from the
tensors that ``torch.export`` put on every node. An image that is not square counts as a square one of as many pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_attention import attention_of, drops
from cdmpp.operators.aten_convolution import CONVOLUTIONS, convolution_of, has_bias, stands_for
from cdmpp.operators.aten_layout import copies_for, copy_of, dtype_of, matrix, shape_of
from cdmpp.operators.operator import LibraryOperator

_VIEWS = frozenset(
    "view permute transpose t unsqueeze squeeze expand expand_as slice select split split_with_sizes chunk unbind "
    "alias detach _unsafe_view lift_fresh_copy lift_fresh view_as unflatten narrow movedim swapaxes diagonal "
    "getitem _assert_tensor_metadata sym_size broadcast_to broadcast_tensors as_strided numpy_T empty_like "
    "new_empty".split()
)
_UNARY = {
    **{name: name for name in "relu gelu tanh exp sqrt rsqrt sigmoid silu neg".split()},
    **dict.fromkeys(("clone", "cat", "stack", "repeat", "_to_copy", "to", "roll", "pad", "constant_pad_nd"), "copy"),
    **dict.fromkeys(("full", "zeros", "ones", "arange", "full_like", "zeros_like", "ones_like", "new_ones"), "copy"),
    **dict.fromkeys(("new_zeros", "new_full", "empty", "scalar_tensor", "triu", "tril", "copy", "copy_"), "copy"),
    **dict.fromkeys(
        ("fill", "zero", "bernoulli", "uniform", "normal", "rand", "randn", "rand_like", "randn_like"), "copy"
    ),
}
_BINARY = {
    **{name: name for name in "add sub mul div pow".split()},
    **{f"{name}_": name for name in "add sub mul div".split()},
}
_BROADCAST = {"add": "add_broadcast", "sub": "add_broadcast", "mul": "mul_broadcast", "div": "mul_broadcast"}
"""Operator of which one factor is read again and again."""
DROPOUT = "dropout"
"""What a call stands for that multiplies by a mask, which the backward pass reads."""
_DROPOUTS = (DROPOUT, "dropout_", "feature_dropout")
_SCALAR = {"sub": "add"}
"""Operator with a scalar that is served like another one."""


class Calls(NamedTuple):
    """What a node runs."""

    operators: tuple[LibraryOperator, ...]
    stands_for: str = ""
    """Operator that the node is and that nobody measured: ``operators`` are what it is answered as."""
    fused_on: tuple[str, ...] = ()
    """Kinds of devices where one kernel runs them all, so that what is between them is never written."""
    dropped: bool = False
    """Whether there is a dropout between them, which takes no time here."""


def calls_of(node: Any) -> Calls:
    """Of one ``call_function`` node of an exported graph.

    ``UnsupportedProgramError`` names an operator that nothing here can answer for, with the place in the model.
    """
    name = _name(node)
    if name in _VIEWS or not _is_tensor(node.meta.get("val")):
        return Calls(())
    if name in ("reshape", "flatten"):
        return Calls(tuple(copies_for(_value(node.args[0]), shape_of(_value(node)))))
    if name == "contiguous":
        return Calls(() if _value(node.args[0]).is_contiguous() else (copy_of(_value(node.args[0])),))
    if name == "clone" and node.kwargs.get("memory_format") is not None:
        return Calls((copy_of(_value(node.args[0])),))
    made = _RULES.get(name)
    if made is not None:
        return _by_rule(node, name, tuple(made(node)))
    if name in _BINARY:
        return Calls((_binary(node, _BINARY[name]),))
    if name.removesuffix("_") in _UNARY:
        if name in ("to", "_to_copy") and _value(node.args[0]).dtype == _value(node).dtype:
            return Calls(())
        return Calls((matrix(_UNARY[name.removesuffix("_")], _value(node)),))
    if name.startswith("upsample_"):
        return Calls((matrix("copy", _value(node)),), name)
    if _is_pointwise(node):
        tensors = [arg for arg in node.args if _is_node(arg) and _value(arg).numel() == _value(node).numel()]
        like = "add" if len(tensors) > 1 else "relu"
        return Calls((matrix(like, _value(node)),), name)
    raise UnsupportedProgramError(
        f"the operator {node.target} ({node.name}{_place(node)}) is of no kind that was measured; replace it in the "
        "model, or predict the network without the part that it belongs to"
    )


def _by_rule(node: Any, name: str, operators: tuple[LibraryOperator, ...]) -> Calls:
    if name == "scaled_dot_product_attention":
        return Calls(operators, "", ("gpu",) if drops(node) else ("cpu", "gpu"), drops(node))
    if name in _DROPOUTS and operators:
        return Calls(operators, DROPOUT)
    return Calls(operators, stands_for(node, name) if name in CONVOLUTIONS else "")


def _name(node: Any) -> str:
    """``add`` of ``aten.add.Tensor``."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(node.target, "__name__", str(node.target))


def _place(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return f", in {path}" if path else ""


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") or isinstance(value, tuple | list)


def _is_node(value: Any) -> bool:
    return hasattr(value, "meta") and hasattr(value.meta.get("val"), "numel")


def _is_pointwise(node: Any) -> bool:
    import torch

    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or _name(node) in ("__and__", "__or__", "__xor__")


def _value(node: Any) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value


def _binary(node: Any, name: str) -> LibraryOperator:
    out = _value(node)
    given = [_value(arg).numel() for arg in node.args[:2] if _is_node(arg)]
    if len(given) > 1 and 2 * min(given) > out.numel():
        return matrix(name, out)
    if len(given) > 1 and min(given) > 1 and name in _BROADCAST:
        return matrix(_BROADCAST[name], out)
    return matrix(f"{_SCALAR.get(name, name)}_scalar", out)


def _linear(node: Any) -> Sequence[LibraryOperator]:
    x, weight, bias = (*node.args, None)[:3]
    return _product(_value(x), _value(weight).shape[0], bias is not None)


def _product(x: Any, cols: int, bias: bool) -> list[LibraryOperator]:
    *leading, inner = shape_of(x)
    rows = max(1, math.prod(leading))
    sizes = {"rows": rows, "inner": inner, "cols": int(cols), "bias": int(bias)}
    return [*copies_for(x, (rows, inner)), LibraryOperator("linear", sizes, dtype_of(x))]


def _matmul(node: Any) -> Sequence[LibraryOperator]:
    x, y = (_value(arg) for arg in node.args[-2:])
    if y.dim() <= 2:
        return _product(x, shape_of(y)[-1] if y.dim() == 2 else 1, _name(node) == "addmm")
    return _batched(x, y)


def _batched(x: Any, y: Any) -> list[LibraryOperator]:
    """Behind copies of factors whose batch is no single axis: PyTorch makes one of it before it multiplies."""
    rows, inner = shape_of(x)[-2:] if x.dim() > 1 else (1, shape_of(x)[-1])
    many, cols = max(math.prod(shape_of(x)[:-2]), math.prod(shape_of(y)[:-2])), shape_of(y)[-1]
    copies = [copies_for(one, (math.prod(shape_of(one)[:-2]), *shape_of(one)[-2:])) for one in (x, y) if one.dim() > 3]
    across = int(not (y.dim() > 3 and copies[-1]) and y.stride()[-1] != 1 and y.stride()[-2] == 1)
    sizes = {"batch": many, "rows": rows, "inner": inner, "cols": cols, "transposed": across}
    return [*itertools.chain(*copies), LibraryOperator("bmm", sizes, dtype_of(x))]


def _einsum(node: Any) -> Sequence[LibraryOperator]:
    """Of two tensors: a product for what both have and the result lacks, else their elementwise one."""
    equation, operands = node.args[0].replace(" ", ""), node.args[1]
    given, _, result = equation.partition("->")
    if len(operands) != 2 or "." in equation or "->" not in equation:
        raise UnsupportedProgramError(
            f"einsum {equation} ({node.name}{_place(node)}): of two tensors, `ab,bc->ac` alone"
        )
    left, right = (set(letters) for letters in given.split(","))
    extent = {
        letter: size
        for letters, operand in zip(given.split(","), operands, strict=True)
        for letter, size in zip(letters, shape_of(_value(operand)), strict=True)
    }
    kept = set(result)
    many, rows, cols, inner = (
        math.prod(extent[letter] for letter in letters)
        for letters in (left & right & kept, (left & kept) - right, (right & kept) - left, (left | right) - kept)
    )
    dtype = dtype_of(_value(node))
    if inner == 1:
        return [matrix("mul", _value(node))]
    if many == 1:
        return [LibraryOperator("linear", {"rows": rows, "inner": inner, "cols": cols, "bias": 0}, dtype)]
    across = int(given[-1] not in kept)
    sizes = {"batch": many, "rows": rows, "inner": inner, "cols": cols, "transposed": across}
    return [LibraryOperator("bmm", sizes, dtype)]


def _convolution(node: Any) -> Sequence[LibraryOperator]:
    x, out = _value(node.args[0]), _value(node)
    operators = [convolution_of(node, _name(node), shape_of(x), shape_of(out), dtype_of(x))]
    return [*operators, matrix("add_broadcast", out)] if has_bias(node) else operators


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int | str) else (value[0], value[-1])


def _pool(node: Any) -> Sequence[LibraryOperator]:
    name = "max_pool2d" if "max" in _name(node) else "avg_pool2d"
    usual: list[Any] = [None, (0, 0)]
    x, kernel, stride, padding = (*node.args, *usual[len(node.args) - 2 :])[:4]
    if any(_pair(one)[0] != _pair(one)[1] for one in (kernel, stride or kernel, padding)):
        raise UnsupportedProgramError(
            f"the pooling {node.name}{_place(node)} has a window of {kernel}: square ones alone"
        )
    batch, channels, *image = shape_of(_value(x))[-4:]
    side = max(1, round(math.sqrt(math.prod(image))))
    sizes = {"batch": batch, "channels": channels, "in_size": side, "kernel": _pair(kernel)[0]}
    sizes |= {"stride": _pair(stride or kernel)[0], "padding": _pair(padding)[0]}
    return [LibraryOperator(name, sizes, dtype_of(_value(x)))]


def _reduced(node: Any) -> Sequence[LibraryOperator]:
    x, out = _value(node.args[0]), _value(node)
    rows = max(1, out.numel())
    return [_mean(rows, x.numel() // rows, dtype_of(x))]


def _batch_norm(node: Any) -> Sequence[LibraryOperator]:
    shape = shape_of(_value(node))
    rows = math.prod(shape[:2])
    return [LibraryOperator("batch_norm", {"rows": rows, "cols": max(1, math.prod(shape[2:]))}, dtype_of(_value(node)))]


def _cross_entropy(node: Any) -> Sequence[LibraryOperator]:
    """Of classes along the second axis: scores to logarithms of shares, then the mean of one a row."""
    scores = _value(node.args[0])
    rows = max(1, scores.numel() // max(1, shape_of(scores)[min(1, scores.dim() - 1)]))
    return [matrix("softmax", scores, min(1, scores.dim() - 1)), _mean(1, rows, dtype_of(scores))]


def _square_error(node: Any) -> Sequence[LibraryOperator]:
    difference = _value(node.args[0])
    return [matrix("sub", difference), _mean(1, difference.numel(), dtype_of(difference))]


def _mean(rows: int, cols: int, dtype: str) -> LibraryOperator:
    return LibraryOperator("mean", {"rows": rows, "cols": max(1, cols)}, dtype)


def _dropout(node: Any) -> Sequence[LibraryOperator]:
    """Of training: a mask is made and multiplied by. Else it is a view."""
    share, trains = node.args[1:3]
    return [matrix("mul", _value(node))] if trains and share else []


_RULES: dict[str, Callable[[Any], Sequence[LibraryOperator]]] = {
    "linear": _linear,
    **dict.fromkeys(("matmul", "mm", "addmm", "bmm", "baddbmm"), _matmul),
    "einsum": _einsum,
    "scaled_dot_product_attention": attention_of,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "max_pool2d_with_indices"), _pool),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "argmax", "any", "all", "cumsum"), _reduced),
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "var", "norm", "linalg_vector_norm"), _reduced),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    **dict.fromkeys(
        ("layer_norm", "native_layer_norm", "rms_norm", "group_norm"), lambda n: [matrix("layer_norm", _value(n))]
    ),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), lambda n: [_softmax(n)]),
    **dict.fromkeys(("embedding", "index", "index_select", "gather"), lambda n: [matrix("embedding", _value(n))]),
    **dict.fromkeys(_DROPOUTS, _dropout),
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(
        ("nll_loss", "nll_loss_nd"), lambda n: _cross_entropy(n)[1:]
    ),  # its logarithms are a call before it
    "mse_loss": _square_error,
    "diff": lambda n: [matrix("sub", _value(n))],
    **dict.fromkeys(("where", "masked_fill", "masked_fill_"), lambda n: [matrix("where", _value(n))]),
}
"""By name; what is not here is a view, elementwise, or not known."""


def _softmax(node: Any) -> LibraryOperator:
    return matrix("softmax", _value(node), int(node.args[1]))
