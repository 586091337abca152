"""Calls of PyTorch's own operators -> framework operators: what an exported graph runs, node by node.

A node runs one operator, several (attention that nobody fused), or none: a view moves nothing. Sizes come from the
tensors that ``torch.export`` put on every node. An image that is not square counts as a square one of as many pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_attention import attention_of
from cdmpp.operators.aten_cells import CELLS, cell_of
from cdmpp.operators.aten_convolution import CONVOLUTIONS, convolution_of, has_bias, image_of, stands_for
from cdmpp.operators.aten_detection import DETECTION, detection_of
from cdmpp.operators.aten_foreach import foreach_of, is_foreach
from cdmpp.operators.aten_grouped import GROUPED, grouped_of
from cdmpp.operators.aten_indexing import BAGS, LOOKUPS, STORES, bag_of, lookup_of, store_of
from cdmpp.operators.aten_layout import copies_for, copy_of, dtype_of, matrix, shape_of
from cdmpp.operators.aten_losses import LOSSES, loss_of
from cdmpp.operators.aten_norm import BATCH_NORMS, ROW_NORMS, batch_norm_of, row_norm_of
from cdmpp.operators.aten_pooling import POOLS, REDUCTIONS, pool_of, reduction_of
from cdmpp.operators.aten_quantised import QUANTISED, check_floats, quantised_of
from cdmpp.operators.aten_recurrent import GATES, recurrent_of
from cdmpp.operators.aten_traffic import copy_like
from cdmpp.operators.aten_types import with_reads
from cdmpp.operators.aten_views import runs_nothing
from cdmpp.operators.backward import Gradient
from cdmpp.operators.operator import PRODUCTS, EagerOperator
from cdmpp.operators.ring_attention import RING, ring_of

_UNARY = {
    **{name: name for name in "relu gelu tanh exp sqrt rsqrt sigmoid silu neg".split()},
    **dict.fromkeys(("clone", "cat", "stack", "repeat", "_to_copy", "to", "roll", "pad", "constant_pad_nd"), "copy"),
    **dict.fromkeys(("full", "zeros", "ones", "arange", "full_like", "zeros_like", "ones_like", "new_ones"), "copy"),
    **dict.fromkeys(
        ("new_zeros", "new_full", "scalar_tensor", "triu", "tril", "triu_indices", "tril_indices", "copy", "copy_"),
        "copy",
    ),
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
_COPIES = ("cumsum", "topk", "sort", "argsort", "histc", "bincount", "repeat_interleave", "one_hot")
"""Operators that read all that they are given once or more, and that nobody measured."""
_UNTRIED_COPIES = (
    *("flip", "im2col", "col2im", "cumprod", "logcumsumexp", "_cummax_helper", "_cummin_helper", "grid_sampler_2d"),
    *("grid_sampler_3d", "bucketize", "searchsorted", "masked_scatter", "exponential_", "glu", "put", "var_mean"),
    *("_weight_norm_interface", "adaptive_max_pool2d", "max_unpool2d", "aminmax", "count_nonzero", "linalg_cross"),
    *("trace", "dot", "multinomial", "kthvalue", "median"),
)
"""The same; what autograd keeps of them was not compared with a run."""
_UNTAGGED = (
    *("__and__", "__or__", "__xor__", "floor_divide"),
    *("hardswish", "hardswish_", "log_sigmoid", "prelu", "_prelu_kernel"),
)
"""Elementwise operators that torch does not mark as such."""
ATTENTION_CALL = "scaled_dot_product_attention"
DROPOUT = "dropout"
"""Name of a call that multiplies by a mask, which the backward pass reads."""
_DROPOUTS = (DROPOUT, "dropout_", "feature_dropout")
_SCALAR = {"sub": "add"}
"""Operator with a scalar that is served like another one."""


class Calls(NamedTuple):
    """A node runs these operators."""

    operators: tuple[EagerOperator, ...]
    stands_for: str = ""
    """Operator that the node is and that nobody measured: ``operators`` are what it is answered as."""
    gradients: tuple[tuple[Gradient, ...] | None, ...] = ()
    """Calls of the backward pass of each operator, None: those of ``backward_of``; empty: of all those."""
    reads: tuple[tuple[Any, ...], ...] = ()
    """Nodes that each operator reads besides the result of the one before; empty: the first reads all of them."""
    is_joined: bool = False
    """True if a library launches all of them in one call, which the host dispatches once."""
    silent: frozenset[int] = frozenset()
    """Places among ``operators`` of those whose gradient runs nothing: it is passed on as it is, or there is none."""
    in_place: frozenset[int] = frozenset()
    """Places among ``operators`` of those that write into what the one before made."""
    held_bytes: tuple[int, ...] = ()
    """Bytes of other tensors that are there while each runs; empty: none."""

    @property
    def product(self) -> int:
        """Place of the first product among the operators; their number where there is none."""
        places = (place for place, one in enumerate(self.operators) if one.kind.family in PRODUCTS)
        return next(places, len(self.operators))


def calls_of(node: Any) -> Calls:
    """Return the calls of one ``call_function`` node of an exported graph.

    ``UnsupportedProgramError`` names an operator that nothing here can answer for, with the place in the model.
    """
    found = _calls_of(node)
    if not found.operators or (found.stands_for and found.operators[0].elements):  # it moves as many bytes as it is
        return found
    return found._replace(operators=(with_reads(found.operators[0], node), *found.operators[1:]))


def _calls_of(node: Any) -> Calls:
    name = name_of(node)
    if runs_nothing(node):
        return Calls(())
    if name in ("reshape", "flatten", "ravel", "reshape_as", "contiguous"):
        return Calls((copy_of(_value(node.args[0])),))
    if name == "clone" and node.kwargs.get("memory_format") is not None:
        return Calls((copy_of(_value(node.args[0])),))
    if (known := _of_kind(node, name)) is not None:
        return Calls((known[0],), known[1])
    if (calls := _of_several(node, name)) is not None:
        return calls
    made = _RULES.get(name) or _GRADIENT_RULES.get(name)
    if made is not None:
        answered = made(node)
        return _by_rule(node, name, answered if isinstance(answered, Calls) else Calls(tuple(answered)))
    if name in _BINARY:
        return Calls((_binary(node, _BINARY[name]),))
    if name.removesuffix("_") in _UNARY:
        return Calls((matrix(_UNARY[name.removesuffix("_")], _value(node)),))
    if name in (*_COPIES, *_UNTRIED_COPIES) or name.startswith(("upsample_", "_upsample_")):
        return Calls((copy_like(node),), name)
    if is_pointwise(node):
        tensors = [arg for arg in node.args if _is_node(arg) and _value(arg).numel() == _value(node).numel()]
        like = "where" if len(tensors) > 2 else "add" if len(tensors) > 1 else "relu"
        return Calls((matrix(like, _value(node)),), name)
    raise UnsupportedProgramError(
        f"the operator {node.target} ({node.name}{place_of_node(node)}) is of no kind that was measured; replace it in "
        "the model, or predict the network without the part that it belongs to"
    )


def _of_kind(node: Any, name: str) -> tuple[EagerOperator, str] | None:
    """The operator of a normalisation, a reduction, a pooling, a lookup or a store, and what it stands for."""
    if name in ROW_NORMS:
        return row_norm_of(node, name), ""
    if name in BATCH_NORMS:
        return batch_norm_of(node), ""
    if name in POOLS:
        return pool_of(node, name, place_of_node(node))
    if name in REDUCTIONS and not is_pointwise(node):
        return reduction_of(node, name)
    if name in LOOKUPS:
        return lookup_of(node, name)
    if name in DETECTION:
        return detection_of(node, name), name
    if name in BAGS:
        return bag_of(node), name
    return store_of(node, name) if name in STORES else None


def _of_several(node: Any, name: str) -> Calls | None:
    """The operators of a loss, of lists of tensors, of many matrices' product, of a recurrent layer, of attention."""
    if name in LOSSES:
        return Calls(*loss_of(node, name))
    if is_foreach(name):
        return Calls((foreach_of(node, name),))
    if name in QUANTISED:
        product, stood_for = quantised_of(node, name)
        return Calls((product,), stood_for)
    check_floats(node, name, place_of_node(node))
    if name in GROUPED:
        grouped = grouped_of(node)
        stood_for = f"{name.removesuffix('_fallback')}, {grouped.note}"
        return Calls(grouped.operators, stood_for, grouped.gradients, (), True)
    if name in CELLS:
        gates, gradients = cell_of(node, name)
        return Calls((gates,), name, (gradients,))
    if name in GATES:
        found = recurrent_of(node, name)
        return Calls(found.operators, found.stands_for, found.gradients, found.reads, True)
    if name == ATTENTION_CALL and RING in node.meta:
        operators, made, silent, held = ring_of(node)
        return Calls(operators, "", made, silent=silent, held_bytes=held)
    if name == ATTENTION_CALL:
        operators, silent = attention_of(node)
        return Calls(operators, silent=silent)
    return None


def _by_rule(node: Any, name: str, found: Calls) -> Calls:
    if name in _DROPOUTS and found.operators:
        return found._replace(stands_for=DROPOUT)
    return found._replace(stands_for=stands_for(node, name)) if name in CONVOLUTIONS else found


def name_of(node: Any) -> str:
    """Return ``add`` of ``aten.add.Tensor``."""
    return name_of_target(node.target)


@lru_cache(maxsize=4096)
def name_of_target(target: Any) -> str:
    """Return the same of the target of a node."""
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(target, "__name__", str(target))


def place_of_node(node: Any) -> str:
    """Return ``, in`` and the module of a node; nothing where that is not known."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return f", in {path}" if path else ""


def _is_node(value: Any) -> bool:
    return hasattr(value, "meta") and hasattr(value.meta.get("val"), "numel")


def is_pointwise(node: Any) -> bool:
    """Return True for an operator that computes each element by itself, in place or not."""
    return _is_pointwise(node.target)


@lru_cache(maxsize=4096)
def _is_pointwise(target: Any) -> bool:
    import torch

    name = name_of_target(target)
    if torch.Tag.pointwise in getattr(target, "tags", ()) or name in _UNTAGGED:
        return True
    other = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    overload = getattr(other, getattr(target, "_overloadname", ""), None)
    return overload is not None and torch.Tag.pointwise in overload.tags


def _value(node: Any) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value


def _binary(node: Any, name: str) -> EagerOperator:
    out = _value(node)
    given = [_value(arg).numel() for arg in node.args[:2] if _is_node(arg)]
    if len(given) > 1 and 2 * min(given) > out.numel():
        return matrix(name, out)
    if len(given) > 1 and min(given) > 1 and name in _BROADCAST:
        return matrix(_BROADCAST[name], out)
    return matrix(f"{_SCALAR.get(name, name)}_scalar", out)


def _linear(node: Any) -> Calls:
    """Answer for a product with a bias in it, or added to it where the first factor does not lie in one piece."""
    x, weight, bias = (*node.args, None)[:3]
    value = _value(x)
    is_apart = bias is not None and value.dim() > 2 and not value.is_contiguous()
    if not is_apart:
        return _product(x, _value(weight).shape[0], *(one for one in (weight, bias) if one is not None))
    found = _product(x, _value(weight).shape[0], weight)
    return _with_bias(found, _value(node), bias)


def _with_bias(found: Calls, out: Any, bias: Any) -> Calls:
    """Add a bias along an axis, whose gradient is a sum; it hands the gradient of the result on as it is."""
    channels = _value(bias).numel()
    summed = EagerOperator("mean", {"rows": channels, "cols": out.numel() // channels}, dtype_of(out))
    gradients = (*[None] * len(found.operators), (Gradient(summed, "weight"),))
    operators = (*found.operators, matrix("add_broadcast", out))
    return found._replace(operators=operators, gradients=gradients, reads=(*found.reads, (bias,)))


def _product(x: Any, cols: int, *others: Any) -> Calls:
    """Return the product of node ``x`` with what it is multiplied by, and a bias: ``others``."""
    *leading, inner = shape_of(_value(x))
    rows = math.prod(leading)
    sizes = {"rows": rows, "inner": inner, "cols": int(cols), "bias": int(len(others) > 1)}
    operator = EagerOperator("linear", sizes, dtype_of(_value(x)))
    copies = copies_for(_value(x), (rows, inner))
    return Calls((*copies, operator), reads=((x,), others) if copies else ((x, *others),))


def _matmul(node: Any) -> Calls:
    x, y = node.args[-2:]
    value = _value(y)
    if value.dim() <= 2:
        added = node.args[:1] if name_of(node) == "addmm" else ()
        return _product(x, shape_of(value)[-1] if value.dim() == 2 else 1, y, *added)
    return _batched(node, x, y)


def _batched(node: Any, first: Any, second: Any) -> Calls:
    """Behind copies of factors whose batch is no single axis: PyTorch makes one of it before it multiplies."""
    import torch

    x, y = _value(first), _value(second)
    rows, inner = shape_of(x)[-2:] if x.dim() > 1 else (1, shape_of(x)[-1])
    many = math.prod(torch.broadcast_shapes(*(tuple(shape_of(one)[:-2]) for one in (x, y))))
    cols = shape_of(y)[-1]
    copies = {one: copies_for(_value(one), (math.prod(shape_of(_value(one))[:-2]), *shape_of(_value(one))[-2:]))
              for one in (first, second) if _value(one).dim() > 3}  # fmt: skip
    across = int(not (y.dim() > 3 and copies[second]) and y.stride()[-1] != 1 and y.stride()[-2] == 1)
    sizes = {"batch": many, "rows": rows, "inner": inner, "cols": cols, "transposed": across}
    copied = [one for one, made in copies.items() if made]
    rest = tuple(one for one in node.all_input_nodes if one not in copied)
    operators = (*itertools.chain(*copies.values()), EagerOperator("bmm", sizes, dtype_of(x)))
    return Calls(operators, reads=(*((one,) for one in copied), rest))


def _einsum(node: Any) -> Sequence[EagerOperator]:
    """Answer for two tensors: a product for what both have and the result lacks, else their elementwise one."""
    equation, operands = node.args[0].replace(" ", ""), node.args[1]
    given, _, result = equation.partition("->")
    if len(operands) != 2 or "." in equation or "->" not in equation:
        raise UnsupportedProgramError(
            f"einsum {equation} ({node.name}{place_of_node(node)}): of two tensors, `ab,bc->ac` alone"
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
        return [EagerOperator("linear", {"rows": rows, "inner": inner, "cols": cols, "bias": 0}, dtype)]
    across = int(given[-1] not in kept)
    sizes = {"batch": many, "rows": rows, "inner": inner, "cols": cols, "transposed": across}
    return [EagerOperator("bmm", sizes, dtype)]


def _convolution(node: Any) -> Calls:
    out = _value(node)
    operator = convolution_of(node, name_of(node), image_of(node), shape_of(out), dtype_of(out))
    if not has_bias(node):
        return Calls((operator,))
    found = Calls((operator,), reads=(tuple(one for one in node.all_input_nodes if one is not node.args[2]),))
    return _with_bias(found, out, node.args[2])


def _cross_entropy(node: Any) -> Sequence[EagerOperator]:
    """Answer for classes along the second axis: scores to logarithms of shares, then the mean of one a row."""
    scores = _value(node.args[0])
    rows = scores.numel() // shape_of(scores)[min(1, scores.dim() - 1)]
    return [matrix("softmax", scores, min(1, scores.dim() - 1)), _mean(1, rows, dtype_of(scores))]


def _mean(rows: int, cols: int, dtype: str) -> EagerOperator:
    return EagerOperator("mean", {"rows": rows, "cols": cols}, dtype)


def _dropout(node: Any) -> Sequence[EagerOperator]:
    """Make a mask and multiply by it, in training; else a dropout is a view and runs nothing."""
    share, trains = node.args[1:3]
    return [matrix("mul", _value(node))] if trains and share else []


def _softmax(node: Any) -> list[EagerOperator]:
    """Return a softmax, behind a cast where its type is another than that of its input."""
    given, out = _value(node.args[0]), _value(node)
    cast = [EagerOperator("copy", matrix("copy", out).sizes, dtype_of(out), reads=(dtype_of(given),))]
    return [*(cast if given.dtype != out.dtype else []), matrix("softmax", out, int(node.args[1]))]


def _logsumexp(node: Any) -> Calls:
    """Answer as ATen runs it: the largest of each row, 0 where infinite, is taken off before and added behind."""
    x, out = _value(node.args[0]), _value(node)
    reduced = _mean(out.numel(), x.numel() // max(out.numel(), 1), dtype_of(x))
    largest = [reduced, *(matrix(name, out) for name in ("relu", "relu", "where"))]
    kernels = *largest, matrix("add_broadcast", x), matrix("exp", x), reduced, matrix("relu", out), matrix("add", out)
    return Calls(kernels, "logsumexp", in_place=frozenset((3, 5, 7)))


_RULES: dict[str, Callable[[Any], Calls | Sequence[EagerOperator]]] = {
    "linear": _linear,
    **dict.fromkeys(("matmul", "mm", "addmm", "bmm", "baddbmm"), _matmul),
    "einsum": _einsum,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(_DROPOUTS, _dropout),
    "logsumexp": _logsumexp,
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(
        ("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward"), lambda n: _cross_entropy(n)[1:]
    ),  # its logarithms are a call before it
    "diff": lambda n: [matrix("sub", _value(n))],
    "outer": lambda n: [matrix("mul_scalar", _value(n))],
    **dict.fromkeys(("where", "masked_fill", "masked_fill_"), lambda n: [matrix("where", _value(n))]),
}
"""Name -> the function that gives its operators; what is not here is a view, elementwise, or not known."""
_GRADIENT_RULES: dict[str, Callable[[Any], Sequence[EagerOperator]]] = {
    **dict.fromkeys(
        ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward"),
        lambda n: [matrix("sub", _value(n))],
    ),
    **dict.fromkeys(
        ("nll_loss_backward", "nll_loss2d_backward", "select_backward", "slice_backward", "diagonal_backward"),
        lambda n: [matrix("copy", _value(n))],
    ),  # zeros of which a part is written
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"),
        lambda n: [matrix("mul", _value(n), int(n.args[2])), matrix("softmax", _value(n), int(n.args[2]))],
    ),
}
"""The same of operators that only a backward pass has."""
