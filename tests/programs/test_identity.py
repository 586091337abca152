"""Identity is blind to names; classes, work and bytes come from the structure."""

from __future__ import annotations

import pytest

tvm = pytest.importorskip("tvm")
from tvm import relax, te, topi  # noqa: E402

from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.identity import flops, io_bytes, is_as_printed, op_class, record_id, task_id  # noqa: E402
from cdmpp.programs.networks import lower, task_of  # noqa: E402

SCRIPT = """
# from tvm.script import ir as I
# from tvm.script import tirx as T
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(source: T.Buffer((8, 16), "float32"), target: T.Buffer((8, 16), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(8, 16):
            with T.sblock("add"):
                v, w = T.axis.remap("SS", [i, j])
                target[v, w] = source[v, w] + T.float32(1)
"""

TABLE, ROWS = relax.TensorType((50, 8), "float32"), relax.TensorType((6,), "int32")


def _module(*tensors: te.Tensor) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def _data(*shape: int, dtype: str = "float32") -> te.Tensor:
    return te.placeholder(shape, dtype, name=f"p{len(shape)}")


def test_identity_ignores_names_and_sees_structure():
    plain = tvm.script.from_source(SCRIPT)
    renamed = SCRIPT.replace("source", "x").replace("target", "y").replace('"add"', '"plus"').replace("main", "other")
    assert task_id(plain) == task_id(tvm.script.from_source(renamed))
    assert task_id(plain) == task_id(tvm.script.from_source(plain.script()))
    assert task_id(plain) != task_id(tvm.script.from_source(SCRIPT.replace("16", "32")))
    assert task_id(plain) != task_id(tvm.script.from_source(SCRIPT.replace("+", "*")))
    assert len(task_id(plain)) == 16 and int(task_id(plain), 16) > 0


def test_identity_is_the_same_in_every_process():
    # A change of this number orphans every stored record: it must come with a schema version.
    assert task_id(tvm.script.from_source(SCRIPT)) == "84ec55611a929150"


def test_record_id_ignores_json_spelling():
    one = record_id("t", "a100", '{"kind": "cuda", "arch": "sm_80"}', "[[], []]")
    assert one == record_id("t", "a100", '{"arch":"sm_80","kind":"cuda"}', "[[],[]]")
    assert one != record_id("t", "v100", '{"arch":"sm_80","kind":"cuda"}', "[[],[]]")
    assert len(one) == 16


def _conv(channels: int, groups: int) -> tvm.IRModule:
    data, weight = _data(1, channels, 14, 14), _data(32, channels // groups, 3, 3)
    if groups == 1:
        return _module(data, weight, topi.nn.conv2d_nchw(data, weight, 1, 1, 1))
    return _module(data, weight, topi.nn.group_conv2d_nchw(data, weight, 1, 1, 1, groups))


def _pool() -> tvm.IRModule:
    x = _data(1, 8, 14, 14)
    return _module(x, topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max"))


def _matmul(first: tuple[int, ...], second: tuple[int, ...]) -> tvm.IRModule:
    a, b = te.placeholder(first, name="a"), te.placeholder(second, name="b")
    k = te.reduce_axis((0, first[-1]), name="k")

    def cell(*place):
        right = (*place[:-2], k, place[-1]) if len(second) > 2 else (k, place[-1])
        return te.sum(a[(*place[:-1], k)] * b[right], axis=k)

    return _module(a, b, te.compute((*first[:-1], second[-1]), cell, name="c"))


@pytest.mark.parametrize(
    ("expected", "build"),
    [
        ("conv2d", lambda: _conv(16, 1)),
        ("conv2d", lambda: _conv(16, 4)),
        ("depthwise", lambda: _conv(32, 32)),
        ("dense", lambda: _matmul((1, 16, 32), (32, 64))),
        ("dense", lambda: _matmul((64, 32), (32, 64))),
        ("matmul", lambda: _matmul((4, 64, 32), (4, 32, 64))),
        ("softmax", lambda: _module(x := _data(8, 64), topi.nn.softmax(x))),
        ("pool", _pool),
        ("reduce", lambda: _module(x := _data(8, 64), topi.sum(x, axis=1))),
        ("elementwise", lambda: _module(x := _data(8, 64), topi.nn.relu(x))),
        ("elementwise", lambda: _module(x := _data(8, 64), topi.transpose(x))),
        (
            "norm",
            lambda: _module(
                x := _data(8, 64), g := _data(64), b := te.placeholder((64,)), topi.nn.layer_norm(x, g, b, axis=[1])
            ),
        ),
    ],
)  # fmt: skip
def test_op_class(expected, build):
    assert op_class("", build()) == expected


def test_winograd_is_told_by_its_blocks(fixture_modules):
    assert [op_class("", module) for module in fixture_modules] == ["conv2d", "pool", "winograd", "softmax"]


def test_work_and_bytes():
    module = _matmul((64, 32), (32, 16))
    assert flops(module) == 2 * 64 * 32 * 16
    assert io_bytes(module) == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_symbolic_shape_is_refused():
    n = te.var("n")
    x = te.placeholder((n, 4), name="x")
    with pytest.raises(UnsupportedProgramError, match="symbolic"):
        io_bytes(tvm.IRModule({"main": te.create_prim_func([x, topi.nn.relu(x)])}))


def test_it_is_known_which_texts_leave_something_out():
    """A lookup of rows by numbers of 32 bits reads regions whose extents are of another type than their starts."""
    builder = relax.BlockBuilder()
    table, rows = (relax.Var(name, kind) for name, kind in (("table", TABLE), ("rows", ROWS)))
    with builder.function("main", [table, rows]):
        builder.emit_func_output(builder.emit(relax.op.take(table, rows, axis=0)))
    [function] = [f for f in lower(builder.get()).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    looked_up = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    parsed = tvm.script.from_source(looked_up.script())
    assert task_id(looked_up) != task_id(parsed)
    assert is_as_printed(parsed) and not is_as_printed(looked_up)
    assert task_of(looked_up, "take", "some", 1).task_id == task_id(parsed)
