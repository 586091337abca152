"""The operator vector: what decides which kernel an operator takes, and how well it fills a device.

It stands where programs that were compiled here have their code vector. Whatever changes a meaning raises the version
of ``library`` in ``ast.layout.FEATURES``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.errors import CdmppError, UnsupportedProgramError
from cdmpp.features import Feature, names, prefixed, read_features, stored
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.operators.measured_form import measured_form
from cdmpp.operators.operator import ATTENTION, FAMILIES, LEARNED, PRODUCTS, TRAINING, EagerOperator
from cdmpp.operators.template import operator_ast

ALIGNMENTS = (2, 4, 8, 16)
"""Elements that wide loads of a matrix row need it to be a multiple of."""
OPERATOR_FEATURES = (
    *prefixed("is", tuple(Feature(name, "flag", f"it is {name}") for name in LEARNED)),
    *prefixed("family", tuple(Feature(name, "flag", f"it is served as {name}") for name in FAMILIES)),
    *read_features(Path(__file__).with_name("operator_features.json"))["operator"],
)
OPERATOR_NAMES = names(OPERATOR_FEATURES)


def operator_vector(operator: EagerOperator) -> np.ndarray:
    """Return (CODE_WIDTH,) float32, filled up with zeros."""
    vector = np.array(stored(OPERATOR_FEATURES, _quantities(operator)), np.float32)
    return np.pad(vector, (0, CODE_WIDTH - len(vector)))


def operator_program(operator: EagerOperator, target_kind: str) -> CompactAST:
    """Make the compact AST of its definition with its vector, for a device of ``target_kind`` (cpu or gpu)."""
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
    operator = measured_form(operator)
    try:
        return replace(operator_ast(operator), code=operator_vector(operator), target_kind=target_kind)
    except OverflowError as error:
        raise CdmppError(f"{operator}: more elements than 64 bits count: give smaller sizes") from error


def _quantities(operator: EagerOperator) -> dict[str, float]:
    kind, element = operator.kind, operator.element_bytes
    many, rows, inner, cols = operator.matmul
    is_product, is_conv = kind.family in PRODUCTS, operator.name == "conv2d"
    conv = operator.sizes if is_conv else {}
    plain = {} if is_product else operator.sizes
    aligned = {"inner": inner if is_product else 0, "cols": cols if is_product else operator.sizes.get("cols", 0)}
    return {
        **{f"is_{name}": float(name == operator.name) for name in LEARNED},
        **{f"family_{name}": float(name == kind.family) for name in FAMILIES},
        "element_bytes": element,
        "flops": operator.flops,
        "special": float(kind.special * operator.written_elements),
        "read_bytes": operator.read_bytes,
        "write_bytes": operator.written_bytes,
        "matmul_count": many if is_product else 0,
        "matmul_rows": rows if is_product else 0,
        "matmul_inner": inner if is_product else 0,
        "matmul_cols": cols if is_product else 0,
        "rows": plain.get("rows", 0),
        "cols": plain.get("cols", 0),
        "transposed_flag": float(operator.sizes.get("transposed", 0)),
        "bias_flag": float(operator.sizes.get("bias", 0)),
        **{
            f"{size}_aligned_{n}_flag": float(extent > 0 and extent % n == 0)
            for size, extent in aligned.items()
            for n in ALIGNMENTS
        },
        "kernel": conv.get("kernel", 0),
        "stride": conv.get("stride", 0),
        "in_channels": conv.get("in_channels", 0),
        "out_channels": conv.get("out_channels", 0),
        "image": conv.get("in_size", 0),
        "images": conv.get("batch", 0),
        "winograd_flag": float(is_conv and (conv["kernel"], conv["stride"], conv["groups"]) == (3, 1, 1)),
        "depthwise_flag": float(is_conv and conv["groups"] == conv["in_channels"] > 1),
    }
