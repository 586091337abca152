"""The operator vector: what decides which kernel an operator takes, and how well it fills a device.

It stands where programs that were compiled here have their code vector. Whatever changes a meaning raises the version
of ``library`` in ``ast.layout.FEATURES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import TARGET_KINDS, AstTable
from cdmpp.errors import CdmppError, UnsupportedProgramError
from cdmpp.features import Feature, names, prefixed, read_features, slogs
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.operators.measured_form import measured_form
from cdmpp.operators.operator import ATTENTION, FAMILIES, LEARNED, PRODUCTS, TRAINING, EagerOperator
from cdmpp.operators.template import operator_ast

ALIGNMENTS = (2, 4, 8, 16)
"""Elements that wide loads of a matrix row need it to be a multiple of."""
_FULL_BYTES = 3.0
OPERATOR_FEATURES = (
    *prefixed("is", tuple(Feature(name, "flag", f"it is {name}") for name in LEARNED)),
    *prefixed("family", tuple(Feature(name, "flag", f"it is served as {name}") for name in FAMILIES)),
    *read_features(Path(__file__).with_name("operator_features.json"))["operator"],
)
OPERATOR_NAMES = names(OPERATOR_FEATURES)


_AMOUNTS = OPERATOR_FEATURES[len(LEARNED) + len(FAMILIES) :]
_ALIGNED = [(size, n, f"{size}_aligned_{n}_flag") for size in ("inner", "cols") for n in ALIGNMENTS]
_NAMES, _IS_PLAIN = names(_AMOUNTS), np.array([feature.plain for feature in _AMOUNTS])
_KINDS = {name: place for place, name in enumerate(LEARNED)}
_FAMILIES = {name: len(LEARNED) + place for place, name in enumerate(FAMILIES)}


def operator_vectors(operators: Sequence[EagerOperator]) -> np.ndarray:
    """Return (n, CODE_WIDTH) float32, filled up with zeros."""
    first, rows = len(LEARNED) + len(FAMILIES), np.arange(len(operators))
    found = np.zeros((len(operators), CODE_WIDTH))
    found[rows, [_KINDS[one.name] for one in operators]] = 1
    found[rows, [_FAMILIES[one.kind.family] for one in operators]] = 1
    amounts = np.array([list(map(_amounts(one).__getitem__, _NAMES)) for one in operators], np.float64)
    found[:, first : first + len(_AMOUNTS)] = np.where(_IS_PLAIN, amounts, slogs(amounts))
    return found.astype(np.float32)


def operator_table(operators: Sequence[EagerOperator], target_kind: str) -> AstTable:
    """Make the compact ASTs of their definitions with their vectors, for a device of ``target_kind`` (cpu or gpu).

    Raises:
        UnsupportedProgramError: fused attention is among them.
        CdmppError: an operator has more elements than 64 bits count.
    """
    forms = list(map(_measured, operators))
    table = AstTable.from_asts(map(_ast, forms))
    kinds = np.full(len(forms), TARGET_KINDS.index(target_kind), np.uint8)
    return replace(table, codes=operator_vectors(forms) if forms else None, target_kinds=kinds)


def vector_table(operators: Sequence[EagerOperator], target_kind: str) -> AstTable:
    """Make the same, each with one leaf and one kernel of zeros: for who reads the vectors alone, and much faster."""
    count, offsets = len(operators), np.arange(len(operators) + 1, dtype=np.int64)
    places = {name: np.zeros(count, np.int32) for name in ("leaf_positions", "leaf_serial_positions", "leaf_kernels")}
    return AstTable(
        leaf_features=np.zeros((count, LEAF_WIDTH), np.float32),
        **places,
        leaf_offsets=offsets,
        kernel_features=np.zeros((count, KERNEL_WIDTH), np.float32),
        kernel_offsets=offsets,
        target_kinds=np.full(count, TARGET_KINDS.index(target_kind), np.uint8),
        codes=operator_vectors(list(map(_measured, operators))),
    )


def operator_program(operator: EagerOperator, target_kind: str) -> CompactAST:
    """Return the only program of ``operator_table``; errors as there."""
    return operator_table([operator], target_kind)[0]


def _measured(operator: EagerOperator) -> EagerOperator:
    if operator.kind.family == ATTENTION:
        raise UnsupportedProgramError(
            f"{operator}: nobody measured fused attention, so no model has learned it. In a network it is answered "
            "from published speeds (cdmpp network --runtime torch); its parts are bmm and softmax"
        )
    if operator.name in TRAINING:
        raise UnsupportedProgramError(
            f"{operator}: nobody measured it by itself, so no model has learned it. In a training step it is answered "
            "from the forward pass's kernel (cdmpp step --runtime torch)"
        )
    return measured_form(operator)


def _ast(operator: EagerOperator) -> CompactAST:
    try:
        return operator_ast(operator)
    except OverflowError as error:
        raise CdmppError(f"{operator}: more elements than 64 bits count: give smaller sizes") from error


def operator_groups(vectors: np.ndarray) -> list[str]:
    """Return (n,) names of operators that err alike: class, and ``narrow`` for elements of less than four bytes."""
    classes = np.array([LEARNED[name].op_class for name in LEARNED])
    columns = [OPERATOR_NAMES.index(f"is_{name}") for name in LEARNED]
    narrow = np.exp2(vectors[:, OPERATOR_NAMES.index("element_bytes")]) - 1 < _FULL_BYTES
    found = classes[vectors[:, columns].argmax(1)]
    return [f"{one}/narrow" if is_narrow else str(one) for one, is_narrow in zip(found, narrow, strict=True)]


def _amounts(operator: EagerOperator) -> dict[str, float]:
    kind, sizes = operator.kind, operator.sizes
    many, rows, inner, cols = operator.matmul
    is_product, is_conv = kind.family in PRODUCTS, operator.name == "conv2d"
    conv = sizes if is_conv else {}
    plain = {} if is_product else sizes
    aligned = {"inner": inner if is_product else 0, "cols": cols if is_product else sizes.get("cols", 0)}
    written = operator.written_elements
    return {
        "element_bytes": operator.element_bytes,
        "flops": operator.flops,
        "special": float(kind.special * written),
        "read_bytes": operator.read_bytes,
        "write_bytes": operator.result_element_bytes * written,
        "matmul_count": many if is_product else 0,
        "matmul_rows": rows if is_product else 0,
        "matmul_inner": inner if is_product else 0,
        "matmul_cols": cols if is_product else 0,
        "rows": plain.get("rows", 0),
        "cols": plain.get("cols", 0),
        "transposed_flag": float(sizes.get("transposed", 0)),
        "bias_flag": float(sizes.get("bias", 0)),
        **{name: float(aligned[size] > 0 and aligned[size] % n == 0) for size, n, name in _ALIGNED},
        "kernel": conv.get("kernel", 0),
        "stride": conv.get("stride", 0),
        "in_channels": conv.get("in_channels", 0),
        "out_channels": conv.get("out_channels", 0),
        "image": conv.get("in_size", 0),
        "images": conv.get("batch", 0),
        "winograd_flag": float(is_conv and (conv["kernel"], conv["stride"], conv["groups"]) == (3, 1, 1)),
        "depthwise_flag": float(is_conv and conv["groups"] == conv["in_channels"] > 1),
    }
