"""The loop program of an operator, without a schedule: a template for each name, and its compact AST."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.native import summarize
from cdmpp.operators.loops import (
    LE,
    LT,
    AllocBuffer,
    And,
    Buffer,
    Expression,
    FloatImm,
    IntImm,
    LoopProgram,
    Max,
    Select,
    SeqStmt,
    Var,
    buffer,
    call,
    nest,
    number,
    store,
)
from cdmpp.operators.operator import EagerOperator

_EPSILON, _LOWEST = 1e-5, -65504.0
_SCALAR = 0.5
"""The number in ``add_scalar`` and the like: its value changes nothing but the text."""


_MOST_TEMPLATES = 1024


class Template(NamedTuple):
    """A loop program serves for all operators of one form: only the sizes in it are others."""

    program: LoopProgram
    holes: list[tuple[IntImm | FloatImm, _Reader]]
    """A node of the program -> the number that it has for an operator."""


def loop_program(operator: EagerOperator) -> LoopProgram:
    """Return the definition of an operator, loops and stores; all its tensors have the type of its result."""
    return _template(_plain(operator)).program


_templates, _in_use = dict[Any, Template](), Lock()


def operator_ast(operator: EagerOperator) -> CompactAST:
    """Read the compact AST of an operator: its loops are serial ones whatever device it is for.

    The same as ``extract`` gives for ``loop_script.script(loop_program(operator))``.
    """
    operator = _plain(operator)
    key = _form(operator)
    with _in_use:  # to make a program takes several times as long as to read it
        if (template := _templates.get(key)) is None:
            if len(_templates) >= _MOST_TEMPLATES:
                _templates.clear()
            template = _templates[key] = _template(operator)
        for node, read in template.holes:
            node.value = read(operator)
        return summarize(template.program, gpu=False)


def _plain(operator: EagerOperator) -> EagerOperator:
    return operator if operator.dtype == operator.result_dtype else replace(operator, dtype=operator.result_dtype)


def _form(operator: EagerOperator) -> Any:
    """All that a template branches on; its other sizes are holes."""
    options = tuple(operator[name] for name in operator.kind.optional)
    window = (operator["kernel"], _is_below(operator)) if "kernel" in operator.sizes else ()
    return operator.name, operator.dtype, options, window


def _template(operator: EagerOperator) -> Template:
    size = _Sizes(operator)
    return Template(_TEMPLATES.get(operator.name, _elementwise)(operator, size), size.holes)


class _Sizes:
    """The sizes of an operator as nodes of its program."""

    def __init__(self, operator: EagerOperator) -> None:
        self.operator = operator
        self.holes: list[tuple[IntImm | FloatImm, _Reader]] = []

    def __call__(self, read: str | _Reader) -> IntImm:
        """Return the node of a size that is read so."""
        reader = (lambda one, name=read: one[name]) if isinstance(read, str) else read
        self.holes.append((node := IntImm(reader(self.operator)), reader))
        return node

    def share(self, read: _Reader) -> FloatImm:
        """Return the node of a number that is read so."""
        self.holes.append((node := number(read(self.operator), self.operator.dtype), read))
        return node


_Reader = Callable[[EagerOperator], Any]


def _buffers(operator: EagerOperator, **shapes: tuple[IntImm | int, ...]) -> list[Buffer]:
    return [buffer(name, shape, operator.dtype) for name, shape in shapes.items()]


def _loops(names: str) -> list[Var]:
    return [Var(name) for name in names.split()]


def _linear(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    rows, inner, cols = map(size, ("rows", "inner", "cols"))
    x, weight, bias, y = _buffers(operator, x=(rows, inner), weight=(cols, inner), bias=(cols,), y=(rows, cols))
    i, j, k = _loops("i j k")
    update = nest([k], [inner], store(y, (i, j), y[i, j] + x[i, k] * weight[j, k]))
    steps = [nest([i, j], [rows, cols], store(y, (i, j), 0), update)]
    if operator["bias"]:
        a, b = _loops("a b")
        steps.append(nest([a, b], [rows, cols], store(y, (a, b), y[a, b] + bias[b])))
    return LoopProgram([x, weight, *([bias] if operator["bias"] else []), y], SeqStmt(steps))


def _bmm(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    batch, rows, inner, cols = map(size, ("batch", "rows", "inner", "cols"))
    across = (batch, cols, inner) if operator["transposed"] else (batch, inner, cols)
    x, weight, y = _buffers(operator, x=(batch, rows, inner), weight=across, y=(batch, rows, cols))
    n, i, j, k = _loops("n i j k")
    factor = weight[n, j, k] if operator["transposed"] else weight[n, k, j]
    update = nest([k], [inner], store(y, (n, i, j), y[n, i, j] + x[n, i, k] * factor))
    return LoopProgram([x, weight, y], SeqStmt([nest([n, i, j], [batch, rows, cols], store(y, (n, i, j), 0), update)]))


def _conv2d(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    batch, channels, out, across = map(size, ("batch", "in_channels", "out_channels", "in_size"))
    kernel, stride, padding, groups = (operator[name] for name in ("kernel", "stride", "padding", "groups"))
    after, own = size(lambda one: one.out_size), size(lambda one: one["in_channels"] // one["groups"])
    each = size(lambda one: one["out_channels"] // one["groups"])
    x, weight, y = _buffers(
        operator,
        x=(batch, channels, across, across),
        weight=(out, own, kernel, kernel),
        y=(batch, out, after, after),
    )
    n, g, f, h, w, c, p, q = _loops("n g f h w c p q")
    row, col = _reached(h, p, stride), _reached(w, q, stride)
    channel = (g * own + c) if groups > 1 else c
    filter_ = (g * each + f) if groups > 1 else f
    value: Expression = x[n, channel, row, col]
    if padding:
        inside = x[n, channel, row - padding, col - padding]
        value = call("if_then_else", _within(row, col, operator, size), inside, number(0.0, operator.dtype))
    place = (n, filter_, h, w)
    update = nest([c, p, q], [own, kernel, kernel], store(y, place, y[place] + value * weight[filter_, c, p, q]))
    loops, extents = ([n, f, h, w], [batch, out, after, after])
    if groups > 1:
        loops, extents = ([n, g, f, h, w], [batch, IntImm(groups), each, after, after])
    return LoopProgram([x, weight, y], SeqStmt([nest(loops, extents, store(y, place, 0), update)]))


def _softmax(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    rows, cols = size("rows"), size("cols")
    x, y, largest, total = _buffers(operator, x=(rows, cols), y=(rows, cols), largest=(rows,), total=(rows,))
    steps = []
    i, j = _loops("i0 j0")
    lowest = number(_LOWEST, operator.dtype)
    steps.append(
        nest(
            [i],
            [rows],
            store(largest, (i,), lowest),
            nest([j], [cols], store(largest, (i,), Max(largest[i], x[i, j]))),
        )
    )
    i, j = _loops("i1 j1")
    steps.append(nest([i, j], [rows, cols], store(y, (i, j), call("exp", x[i, j] - largest[i]))))
    i, j = _loops("i2 j2")
    steps.append(nest([i], [rows], store(total, (i,), 0), nest([j], [cols], store(total, (i,), total[i] + y[i, j]))))
    i, j = _loops("i3 j3")
    steps.append(nest([i, j], [rows, cols], store(y, (i, j), y[i, j] / total[i])))
    return LoopProgram([x, y], SeqStmt([AllocBuffer(largest), AllocBuffer(total), *steps]))


def _layer_norm(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    rows, cols = size("rows"), size("cols")
    x, y = _buffers(operator, x=(rows, cols), y=(rows, cols))
    weights = _buffers(operator, **{name: (cols,) for name in _norm_weights(operator["weights"])})
    total, squares = _buffers(operator, total=(rows,), squares=(rows,))
    i, j = _loops("i0 j0")
    sums = nest(
        [i],
        [rows],
        store(total, (i,), 0),
        store(squares, (i,), 0),
        nest(
            [j],
            [cols],
            store(total, (i,), total[i] + x[i, j]),
            store(squares, (i,), squares[i] + x[i, j] * x[i, j]),
        ),
    )
    i, j = _loops("i1 j1")
    share = size.share(lambda one: 1.0 / one["cols"])
    mean = total[i] * share
    variance = squares[i] * share - mean * mean
    scaled = (x[i, j] - mean) * call("rsqrt", variance + _EPSILON)
    value: Expression = scaled
    for place, weight in enumerate(weights):
        value = value + weight[j] if place else value * weight[j]
    last = nest([i, j], [rows, cols], store(y, (i, j), value))
    return LoopProgram([x, *weights, y], SeqStmt([AllocBuffer(total), AllocBuffer(squares), sums, last]))


def _norm_weights(count: int) -> list[str]:
    return ["weight", "bias", *(f"shift{place}" for place in range(2, count))][:count]


def _batch_norm(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    rows, cols = size("rows"), size("cols")
    x, scale, shift, y = _buffers(operator, x=(rows, cols), scale=(rows,), shift=(rows,), y=(rows, cols))
    i, j = _loops("i j")
    last = nest([i, j], [rows, cols], store(y, (i, j), x[i, j] * scale[i] + shift[i]))
    return LoopProgram([x, scale, shift, y], SeqStmt([last]))


def _embedding(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    """The table has as many rows as are looked up: how many more there are changes nothing."""
    rows, cols = size("rows"), size("cols")
    table, y = _buffers(operator, table=(rows, cols), y=(rows, cols))
    place = buffer("place", (rows,), "int32")
    i, j = _loops("i j")
    return LoopProgram([table, place, y], SeqStmt([nest([i, j], [rows, cols], store(y, (i, j), table[place[i], j]))]))


def _mean(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    rows, cols = size("rows"), size("cols")
    x, y = _buffers(operator, x=(rows, cols), y=(rows,))
    i, j = _loops("i j")
    sums = nest([i], [rows], store(y, (i,), 0), nest([j], [cols], store(y, (i,), y[i] + x[i, j])))
    (k,) = _loops("k")
    return LoopProgram(
        [x, y], SeqStmt([sums, nest([k], [rows], store(y, (k,), y[k] * size.share(lambda one: 1.0 / one["cols"])))])
    )


def _pool(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    batch, channels, across, after = (*map(size, ("batch", "channels", "in_size")), size(lambda one: one.out_size))
    kernel, stride, padding = (operator[name] for name in ("kernel", "stride", "padding"))
    largest = operator.name[:3] == "max"
    x, y = _buffers(operator, x=(batch, channels, across, across), y=(batch, channels, after, after))
    n, c, h, w, p, q = _loops("n c h w p q")
    row, col = _reached(h, p, stride), _reached(w, q, stride)
    place, outside = (n, c, h, w), number(_LOWEST if largest else 0.0, operator.dtype)
    value: Expression = x[n, c, row, col]
    if padding:
        value = call("if_then_else", _within(row, col, operator, size), x[n, c, row - padding, col - padding], outside)
    share = number(1.0 / kernel**2, operator.dtype)
    update = store(y, place, Max(y[place], value) if largest else y[place] + value * share)
    body = store(y, place, outside), nest([p, q], [kernel, kernel], update)
    return LoopProgram([x, y], SeqStmt([nest([n, c, h, w], [batch, channels, after, after], *body)]))


def _reached(place: Var, tap: Var, stride: int) -> Expression:
    """Return the place of the padded input that a tap of a window reaches."""
    return place * stride + tap if stride > 1 else place + tap


def _within(row: Expression, col: Expression, operator: EagerOperator, size: _Sizes) -> Expression:
    """Return whether a place of the padded input lies in the input; as TVM writes it, without what always holds."""
    padding, end = IntImm(operator["padding"]), size(_end)
    return And(*(LE(padding, p) if _is_below(operator) else And(LE(padding, p), LT(p, end)) for p in (row, col)))


def _end(operator: EagerOperator) -> int:
    """Return the first place of the padded input behind the input."""
    return operator["in_size"] + operator["padding"]


def _is_below(operator: EagerOperator) -> bool:
    """Return True if no window reaches the padding behind the input."""
    return (operator.out_size - 1) * operator["stride"] + operator["kernel"] <= _end(operator)


def _elementwise(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    shape = size("rows"), size("cols")
    x, z, w, y = _buffers(operator, x=shape, z=shape, w=shape, y=shape)
    i, j = _loops("i j")
    inputs = [x, z, w][: operator.kind.inputs]
    second = z[i, j] if operator.kind.inputs > 1 else number(_SCALAR, operator.dtype)
    value = _VALUES[operator.name.removesuffix("_scalar")](x[i, j], second)
    if operator.name == "where":
        value = Select(LT(number(0.0, operator.dtype), x[i, j]), z[i, j], w[i, j])
    return LoopProgram([*inputs, y], SeqStmt([nest([i, j], shape, store(y, (i, j), value))]))


def _blocks(operator: EagerOperator, size: _Sizes) -> LoopProgram:
    """Make operators whose rows stand in blocks: n of them in the result, of b rows each."""
    rows, cols = size(lambda one: one.block_rows), size("cols")
    result = (size(lambda one: one["rows"] // one.block_rows), rows, cols)
    given = {"permute": (rows, result[0], cols), "transpose": (result[0], cols, rows)}.get(operator.name, result)
    x, z, y = _buffers(operator, x=given, z=(rows, cols), y=result)
    n, b, j = _loops("n b j")
    if operator.name in ("permute", "transpose"):
        moved = x[b, n, j] if operator.name == "permute" else x[n, j, b]
        return LoopProgram([x, y], SeqStmt([nest([n, b, j], result, store(y, (n, b, j), moved))]))
    value = _VALUES[operator.name.removesuffix("_broadcast")](x[n, b, j], z[b, j])
    return LoopProgram([x, z, y], SeqStmt([nest([n, b, j], result, store(y, (n, b, j), value))]))


def _gelu(x: Expression, _: Expression) -> Expression:
    """Half of x, times 1 + erf(x / sqrt 2)."""
    half, one = number(0.5, x.element), number(1.0, x.element)
    return x * half * (one + call("erf", x * math.sqrt(0.5)))


_VALUES: dict[str, Callable[[Expression, Expression], Expression]] = {
    "add": lambda x, z: x + z,
    "sub": lambda x, z: x - z,
    "mul": lambda x, z: x * z,
    "div": lambda x, z: x / z,
    "pow": lambda x, z: call("pow", x, z),
    "relu": lambda x, z: Max(x, number(0.0, x.element)),
    "gelu": _gelu,
    **{
        name: lambda x, z, name=name: call(name, x)  # type: ignore[misc]
        for name in ("tanh", "exp", "sqrt", "rsqrt", "sigmoid")
    },
    "silu": lambda x, z: x * call("sigmoid", x),
    "neg": lambda x, z: x * -1.0,
    "copy": lambda x, z: x,
    "where": lambda x, z: z,
}
_TEMPLATES: dict[str, Callable[[EagerOperator, _Sizes], LoopProgram]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "mean": _mean,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    **dict.fromkeys(("permute", "transpose", "add_broadcast", "mul_broadcast"), _blocks),
}
