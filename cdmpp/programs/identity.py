"""Identity, op class, work and bytes of a task: they say what a tensor program is, whatever its names."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.gate import nodes_of

OP_CLASSES = tuple("conv2d winograd depthwise dense matmul softmax norm pool reduce elementwise other".split())
_NAMING_ATTRIBUTES = frozenset(
    "global_symbol op_pattern op_attrs operator_name s_tir tirx.noalias layout_free_buffers".split()
)
"""Attributes that say how a function is called, was found or may be tuned, not what it computes."""
_NORM = r"layer_?norm|rms_norm|batch_norm|group_norm|instance_norm|red_temp|mean.*rsqrt"
_NAMED_CLASSES = {"softmax": "softmax", "norm": _NORM, "pool": "pool"}
_REDUCE = 2  # tirx.IterVar.iter_type of a reduction axis


def prim_func(module: tvm.IRModule | tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the one PrimFunc of a task; ``UnsupportedProgramError`` where there is none or more than one."""
    if isinstance(module, tirx.PrimFunc):
        return module
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise UnsupportedProgramError(f"a task is a module with one PrimFunc, this one has {len(functions)}")
    return functions[0]


def task_id(module: tvm.IRModule | tirx.PrimFunc) -> str:
    """Hash the structure of the PrimFunc, blind to names of functions, blocks, buffers and variables: 16 hex digits.

    TVM's structural hash is the same in every process and on every machine (databases store it).
    """
    function = prim_func(module)
    for key in _NAMING_ATTRIBUTES.intersection(function.attrs.keys() if function.attrs is not None else ()):
        function = function.without_attr(key)
    return f"{int(tvm_ffi.structural_hash(function)) & (2**64 - 1):016x}"


def is_as_printed(module: tvm.IRModule | tirx.PrimFunc) -> bool:
    """Return True where the text of a program leaves nothing out: parsing it, 0.1 s, would give the same again.

    Printed regions of blocks have no type of their own for their extents.
    """
    blocks = nodes_of(prim_func(module).body, s_tir.SBlock)
    regions = [part for block in blocks for access in (*block.reads, *block.writes) for part in access.region]
    return all(part.min.ty == part.extent.ty for part in regions)


def record_id(task: str, device: str, target: str, schedule: str, canonical: bool = False) -> str:
    """Hash task id, device name, target JSON and trace JSON, blind to spacing of the JSON: 16 hex digits.

    ``canonical`` says that both are spelled as ``canonical_json`` does.
    """
    parts = (task, device, *((target, schedule) if canonical else map(canonical_json, (target, schedule))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def canonical_json(text: str) -> str:
    """Spell a JSON text in one way: no blanks, sorted keys. Text that is not JSON is kept."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except json.JSONDecodeError:
        return text


def flops(module: tvm.IRModule | tirx.PrimFunc) -> float:
    """Count the arithmetic operations of one execution of an unscheduled task (a multiply-add is two)."""
    function = prim_func(module)
    try:
        return float(estimate_tir_flops(tvm.IRModule({"main": function})))
    except Exception:  # TVM's count refuses some nodes (loops of run-time extent, unknown calls)
        return float(_stores(function.body))


def io_bytes(module: tvm.IRModule | tirx.PrimFunc) -> float:
    """Count bytes of all inputs and outputs, each once. Symbolic shapes raise ``UnsupportedProgramError``."""
    total = 0.0
    for parameter in prim_func(module).params:
        shape = getattr(parameter, "shape", None)
        if shape is None:
            continue
        if not all(isinstance(extent, (int, tirx.IntImm)) for extent in shape):
            message = f"parameter {parameter.name} has the symbolic shape {list(shape)}: bind it to numbers first"
            raise UnsupportedProgramError(message)
        bits = tvm.DataType(str(parameter.dtype))
        total += math.prod(int(extent) for extent in shape) * math.ceil(bits.bits * bits.lanes / 8)
    return total


def block_names(module: tvm.IRModule | tirx.PrimFunc) -> list[str]:
    """Name the blocks in program order, the root left out. Traces refer to blocks by these."""
    return [block.name_hint for block in _blocks(module)]


def op_class(name: str, module: tvm.IRModule | tirx.PrimFunc) -> str:
    """Return the coarse class of a task, one of ``OP_CLASSES``; the heaviest operation decides."""
    blocks = _blocks(module)
    words = " ".join([name, *(block.name_hint for block in blocks)]).lower()
    if not blocks:
        return "other"
    if "winograd" in words or {"bgemm", "data_pack", "inverse"} <= set(words.split()):
        return "winograd"
    if classes := {_product_class(block, loads, words) for block in blocks if (loads := _product(block))}:
        return next(c for c in ("conv2d", "depthwise", "dense", "matmul", "reduce") if c in classes)
    for named, pattern in _NAMED_CLASSES.items():
        if re.search(pattern, words):
            return named
    return "reduce" if any(map(_reduced, blocks)) else "elementwise"


def _reduced(block: Any) -> list[Any]:
    return [axis for axis in block.iter_vars if int(axis.iter_type) == _REDUCE]


def _product(block: Any) -> list[Any]:
    """The two loads where the block sums products of two tensors over a reduction axis, else none."""
    for store in nodes_of(block.body, tirx.BufferStore) if _reduced(block) else ():
        for product in nodes_of(store.value, tvm.tirx.Mul):
            left, right = (nodes_of(side, tvm.ir.TensorLoad)[:1] for side in (product.a, product.b))
            if left and right and not left[0].source.same_as(right[0].source):
                return left + right
    return []


def _product_class(block: Any, operands: list[Any], words: str) -> str:
    reduced = [axis.var for axis in _reduced(block)]
    spatial = [axis.var for axis in block.iter_vars if int(axis.iter_type) != _REDUCE]
    slides = [any(_uses(i, reduced) and _uses(i, spatial) for i in load.indices) for load in operands]
    if "conv" in words or any(slides):
        weight = operands[1] if slides[0] or not slides[1] else operands[0]
        shape = [int(extent) for extent in weight.source.shape if isinstance(extent, (int, tirx.IntImm))]
        several_channels = len(shape) > 1 and max(shape[:2]) > 1
        single = "depthwise" in words or (len(shape) >= 3 and shape[1] == 1 and several_channels)
        window = math.prod(_extent(axis.dom.extent) for axis in _reduced(block))
        return "depthwise" if single and window <= math.prod(shape[2:] or [1]) else "conv2d"
    ranks = sorted(sum(1 for extent in load.source.shape if _extent(extent) != 1) for load in operands)
    if ranks[0] <= 1 and ranks[1] <= 1:
        return "reduce"
    # Batched on both sides: a product of activations. With a plain matrix on one side: a layer with weights.
    return "matmul" if min(len(load.source.shape) for load in operands) > 2 else "dense"


def _extent(value: Any) -> int:
    return int(value) if isinstance(value, (int, tirx.IntImm)) else 2


def _uses(expression: Any, variables: list[Any]) -> bool:
    return any(v.same_as(used) for used in nodes_of(expression, tirx.Var) for v in variables)


def _blocks(module: tvm.IRModule | tirx.PrimFunc) -> list[Any]:
    return [block for block in nodes_of(prim_func(module).body, s_tir.SBlock) if block.name_hint != "root"]


def _stores(statement: Any, trips: float = 1.0) -> float:
    """Number of stores that ``statement`` makes in ``trips`` runs; loops of unknown extent count as two rounds."""
    if isinstance(statement, tirx.BufferStore):
        return trips
    if isinstance(statement, tirx.SeqStmt):
        parts = list(statement.seq)
    elif isinstance(statement, s_tir.SBlockRealize):
        parts = [statement.block.body]
    else:
        trips *= _extent(statement.extent) if isinstance(statement, tirx.For) else 1
        parts = [getattr(statement, field, None) for field in ("body", "then_case", "else_case")]
    return sum(_stores(part, trips) for part in parts if part is not None)


def without_offsets(module: Any) -> Any:
    """Return it with buffers that begin where their memory does: operators that TVM makes as a loop leave it open."""
    main = module["main"]
    open_ones = [one for one in main.params if isinstance(getattr(one, "elem_offset", None), tirx.Var)]
    if not open_ones:
        return module
    closed = {one: tirx.decl_buffer(one.shape, one.dtype, one.name) for one in open_ones}
    return tvm.IRModule({**dict(module.functions_items()), module.get_global_var("main"): main.specialize(closed)})
