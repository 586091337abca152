"""ONNX's own test cases of single operators, run as torch modules: what each of them comes to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import torch
import torchvision
from onnx.backend.test.loader import load_model_tests

from cdmpp.errors import CdmppError
from cdmpp.network.source.onnx_ops.quantised import PACKED_TYPES
from cdmpp.network.source.onnx_ops.selected import RULES as SELECTED
from cdmpp.network.source.onnx_ops.table import RULES
from cdmpp.network.source.onnx_reader import module_of_onnx
from cdmpp.network.source.onnx_types import torch_tensor


def cases() -> list[Any]:
    """List the cases of the standard domain that are given tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = load_model_tests(kind="node")
    return [
        one
        for one in every
        if all(value.type.WhichOneof("value") == "tensor_type" for value in one.model.graph.input)
        and all(isinstance(value, np.ndarray | np.generic | onnx.TensorProto) for value in one.data_sets[0][0])
        and {opset.domain for opset in one.model.opset_import} <= {"", "ai.onnx"}
    ]


def outcome(case: Any, folder: Path) -> str:
    """Run a case: ``same`` if its results are ONNX's, else ``refused: ...`` or ``wrong: ...``.

    What a rule has to know before anything runs, and weights of layers, are weights of the file.
    """
    given, expected = ([_array(value) for value in many] for many in case.data_sets[0])
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node, left, values = case.model.graph.node[0], [], []
    rule = RULES.get(node.op_type)
    known = {0, 1} if rule is None else {*rule.known, *((1, 2, 3) if rule.layer else ())}  # a loop's rounds
    for described, value in zip(case.model.graph.input, given, strict=True):
        is_known = described.name in node.input and list(node.input).index(described.name) in known
        if is_known or described.type.tensor_type.elem_type in PACKED_TYPES:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, described.name))
        else:
            left.append(described)
            values.append(value)
    del model.graph.input[:]
    model.graph.input.extend(left)
    onnx.save(model, folder / "case.onnx")
    try:
        boxes = max(expected[0].shape[-1 if node.op_type == "NonZero" else 0], 1) if node.op_type in SELECTED else None
        module, _ = module_of_onnx(folder / "case.onnx", None, None, boxes)
        inputs = [torch_tensor(np.asarray(value), _refuse) for value in values]
        with torch.no_grad(), patch.object(torchvision.ops.boxes, "nms", suppressed):
            found = module(*inputs)
        wanted = [torch_tensor(np.asarray(value), _refuse) for value in expected]
    except CdmppError as error:
        return f"refused: {error}"
    for one, other in zip(found if isinstance(found, tuple) else (found,), wanted, strict=False):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"wrong: {one.dtype} {tuple(one.shape)} in place of {other.dtype} {tuple(other.shape)}"
        close = 2e-2 if one.dtype in (torch.bfloat16, torch.float16) else 1e-4
        if not torch.allclose(one.double(), other.double(), rtol=max(1e-3, close), atol=close, equal_nan=True):
            return f"wrong: {float((one.double() - other.double()).abs().max())} off"
    return "same"


def suppressed(boxes: Any, scores: Any, most: float) -> Any:
    """Places of boxes that overlap no better one by more, best first: torchvision's own is compiled code."""
    left, found = scores.argsort(descending=True, stable=True).tolist(), []
    while left:
        found.append(left[0])
        overlap = torchvision.ops.box_iou(boxes[left[:1]], boxes[left])[0]
        left = [place for place, one in zip(left[1:], overlap[1:], strict=True) if one <= most]
    return torch.tensor(found, dtype=torch.long)


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _refuse(why: str) -> Any:
    raise CdmppError(why)
