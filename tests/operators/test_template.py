"""Templates say what operators compute: TVM makes the same compact AST and the same numbers of their text."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from cdmpp.ast.native import summarize
from cdmpp.operators.loop_script import script
from cdmpp.operators.operator import LEARNED, EagerOperator
from cdmpp.operators.template import loop_program, operator_ast

SIZES = {
    "linear": {"rows": 5, "inner": 12, "cols": 7},
    "bmm": {"batch": 3, "rows": 5, "inner": 12, "cols": 7},
    "conv2d": {"batch": 2, "in_channels": 4, "out_channels": 6, "in_size": 9, "kernel": 3},
}
PLAIN = {"rows": 6, "cols": 10}
POOL = {"batch": 2, "channels": 3, "in_size": 8, "kernel": 3}
SIZES |= dict.fromkeys(("max_pool2d", "avg_pool2d"), POOL)
OPERATORS = [EagerOperator(name, SIZES.get(name, PLAIN)) for name in LEARNED] + [
    EagerOperator("max_pool2d", {**POOL, "stride": 2, "padding": 1}),
    EagerOperator("avg_pool2d", {**POOL, "padding": 1}),
    EagerOperator("linear", {**SIZES["linear"], "bias": 0}),
    EagerOperator("bmm", {**SIZES["bmm"], "transposed": 1}),
    EagerOperator("conv2d", {**SIZES["conv2d"], "padding": 1}),
    EagerOperator("conv2d", {**SIZES["conv2d"], "padding": 1, "stride": 2, "groups": 2}),
    EagerOperator("softmax", PLAIN, "float16"),
]


COMPUTED = {
    "linear": lambda sizes, *tensors: functional.linear(*tensors),
    "bmm": lambda sizes, x, y: torch.bmm(x, y.transpose(1, 2) if sizes["transposed"] else y),
    "conv2d": lambda sizes, x, w: functional.conv2d(x, w, None, sizes["stride"], sizes["padding"], 1, sizes["groups"]),
    "softmax": lambda sizes, x: functional.softmax(x, dim=-1),
    "layer_norm": lambda sizes, x, *rest: functional.layer_norm(x, (sizes["cols"],), *rest),
    "batch_norm": lambda sizes, x, scale, shift: x * scale[:, None] + shift[:, None],
    "embedding": lambda sizes, table, places: functional.embedding(places, table),
    "mean": lambda sizes, x: x.mean(dim=1),
    "where": lambda sizes, x, *values: torch.where(x > 0, *values),
    "copy": lambda sizes, x: x.clone(),
    "permute": lambda sizes, x: x.transpose(0, 1),
    "transpose": lambda sizes, x: x.transpose(1, 2),
    "max_pool2d": lambda sizes, x: functional.max_pool2d(x, sizes["kernel"], sizes["stride"], sizes["padding"]),
    "avg_pool2d": lambda sizes, x: functional.avg_pool2d(x, sizes["kernel"], sizes["stride"], sizes["padding"]),
}


def computed(operator: EagerOperator, inputs: list[torch.Tensor]) -> torch.Tensor:
    """By PyTorch."""
    name = operator.name
    if name in COMPUTED:
        return COMPUTED[name](operator.sizes, *inputs)
    if name.endswith("_scalar"):
        return getattr(torch, name.removesuffix("_scalar"))(inputs[0], 0.5)
    if name.endswith("_broadcast"):
        return getattr(torch, name.removesuffix("_broadcast"))(*inputs)
    return getattr(functional if name in ("gelu", "silu") else torch, name)(*inputs)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_tvm_reads_the_same_of_its_text(operator):
    pytest.importorskip("tvm")
    from cdmpp.ast.extract import extract
    from cdmpp.programs.replay import parse_target, parse_workload
    from tests.reference.extract import extract_readable

    module, target = parse_workload(script(loop_program(operator))), parse_target({"kind": "llvm"})
    mine = operator_ast(operator)
    for theirs in (extract(module, target), extract_readable(module, target)):
        for name in ("leaf_positions", "leaf_serial_positions", "leaf_kernels"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        np.testing.assert_allclose(mine.leaf_features, theirs.leaf_features, rtol=1e-6)
        np.testing.assert_allclose(mine.kernel_features, theirs.kernel_features, rtol=1e-6)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_it_computes_what_pytorch_computes(operator):
    tvm = pytest.importorskip("tvm")
    from cdmpp.programs.replay import parse_workload

    if operator.dtype != "float32":
        pytest.skip("LLVM's float16 needs a runtime library")
    module = tvm.compile(parse_workload(script(loop_program(operator))), target="llvm")
    generator, program = torch.Generator().manual_seed(0), loop_program(operator)
    inputs = [
        torch.randint(shape[0], shape, generator=generator, dtype=torch.int32)
        if element == "int32"
        else torch.rand(shape, generator=generator)
        + 0.1 * (operator.name != "where")
        - 0.5 * (operator.name == "where")
        for shape, element in ((one.shape, one.element) for one in program.params[:-1])
    ]
    out = tvm.runtime.tensor(np.zeros(program.params[-1].shape, np.float32))
    module["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs), out)
    np.testing.assert_allclose(out.numpy(), computed(operator, inputs).numpy(), rtol=2e-5, atol=1e-6)


def test_no_tvm_is_needed():
    code = (
        "import sys; sys.modules['tvm'] = None\n"
        "from cdmpp.operators.operator import EagerOperator\n"
        "from cdmpp.operators.template import operator_ast\n"
        "print(operator_ast(EagerOperator.parse('linear', '512x1024x4096')).n_leaf)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_elements_are_those_of_the_buffers(operator):
    program = loop_program(operator)
    elements = [float(np.prod(buffer.shape)) for buffer in program.params]
    assert operator.read_elements == sum(elements[:-1])
    assert operator.written_elements == elements[-1]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_a_program_with_other_sizes_put_in_is_that_of_the_operator(operator):
    draw = np.random.default_rng(len(str(operator)))
    for _ in range(12):
        sizes = {name: int(draw.choice([1, 2, 3, 5, 8, 60, 128, 1000])) for name in operator.kind.sizes}
        sizes |= {"kernel": operator["kernel"], "in_size": int(draw.integers(3, 40))} if "kernel" in sizes else {}
        for name in {"in_channels", "out_channels"} & set(sizes):
            sizes[name] *= operator["groups"]
        other = EagerOperator(operator.name, {**operator.sizes, **sizes}, operator.dtype)
        mine, fresh = operator_ast(other), summarize(loop_program(other), gpu=False)
        for name in ("leaf_features", "kernel_features", "leaf_positions", "leaf_serial_positions", "leaf_kernels"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(fresh, name))
