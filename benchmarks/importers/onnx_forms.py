"""Nodes that the test vectors of the standard lack: forms of older operator sets, and more settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, parser

_random = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def x(*shape: int) -> np.ndarray:
    """Normal float32 numbers."""
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """Float32 numbers between 0.1 and 0.9."""
    return _random.uniform(0.1, 0.9, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """Int64 values."""
    return np.array(values, np.int64)


def model_of(
    operator: str, given: Sequence[np.ndarray | None], attributes: dict[str, Any], opset: int, domain: str = "",
    constants: Sequence[int] = (), outputs: int = 1,
) -> tuple[Any, list[np.ndarray]]:  # fmt: skip
    """A model of one node; inputs at ``constants`` are initializers. And the inputs that are left."""
    names = ["" if value is None else f"i{place}" for place, value in enumerate(given)]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(operator, names, made, domain=domain, name=f"the_{operator}", **attributes)
    values = [
        helper.make_tensor_value_info(names[place], helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for place, value in enumerate(given)
        if value is not None and place not in constants
    ]
    stored = ((place, given[place]) for place in constants)
    weights = [numpy_helper.from_array(value, names[place]) for place, value in stored if value is not None]
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    sets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph([node], operator, values, results, weights)
    left = [value for place, value in enumerate(given) if value is not None and place not in constants]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), left


def forms() -> Iterator[tuple[str, Any, list[np.ndarray]]]:
    """``(name, model, inputs)``."""
    counts = Counter[str]()
    for operator, opset, attributes, given, *more in chain(_microsoft(), _few(), _layers(), _old()):
        options = more[0] if more else {}
        model, left = model_of(operator, given, attributes, opset, **options)
        counts[operator] += 1
        yield f"{operator}/{counts[operator]}", model, left
    for place, (body, given) in enumerate(_sequences()):
        inputs = ", ".join(f"float{list(value.shape)} {name}" for name, value in zip("ab", given, strict=False))
        text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (y) {{ {body} }}'
        yield f"sequences/{place}", parser.parse_model(text), given


def _sequences() -> Iterator[tuple[str, list[np.ndarray]]]:
    """Nodes in ONNX's textual syntax, from inputs ``a`` and ``b`` to the result ``y``."""
    for axis in (0, 1, -1):
        whole = f"s = SplitToSequence <axis = {axis}> (a)"
        yield f"{whole} y = ConcatFromSequence <axis = {axis}> (s)", [x(4, 6)]
        yield f"{whole} y = ConcatFromSequence <axis = 0, new_axis = 1> (s)", [x(4, 6)]
        yield f"{whole} i = Constant <value = int64 {{{axis}}}> () y = SequenceAt (s, i)", [x(4, 6)]
        yield f"{whole} y = SequenceLength (s)", [x(4, 6)]
        yield f"s = SplitToSequence <axis = {axis}, keepdims = 0> (a) y = ConcatFromSequence <axis = 0> (s)", [x(4, 6)]
        size = "n = Constant <value = int64 {2}> ()"
        yield f"{size} s = SplitToSequence <axis = {axis}> (a, n) y = ConcatFromSequence <axis = {axis}> (s)", [x(4, 6)]
    pair = "s = SequenceConstruct (a, b)"
    for shape in ((3, 4), (2,), (2, 3, 4)):
        two = [x(*shape), x(*shape)]
        yield f"{pair} y = ConcatFromSequence <axis = 0> (s)", two
        yield f"{pair} i = Constant <value = int64 {{1}}> () y = SequenceAt (s, i)", two
        first = "i = Constant <value = int64 {0}> ()"
        yield f"{pair} {first} t = SequenceErase (s, i) y = ConcatFromSequence <axis = 0> (t)", two
        yield f"{pair} t = SequenceErase (s) y = ConcatFromSequence <axis = 0> (t)", two
        yield f"{pair} t = SequenceInsert (s, a) y = ConcatFromSequence <axis = 0> (t)", two
        yield "e = SequenceEmpty () t = SequenceInsert (e, a) u = SequenceInsert (t, b) y = SequenceLength (u)", two
        yield "e = SequenceEmpty () t = SequenceInsert (e, a) y = ConcatFromSequence <axis = -1> (t)", two
        yield "o = Optional (a) y = OptionalGetElement (o)", two[:1]
        yield "o = Optional (a) y = OptionalHasElement (o)", two[:1]


def _old() -> Iterator[tuple[Any, ...]]:  # noqa: C901 - a list
    image, weights = x(2, 3, 6, 5), {"constants": [1]}
    for axes in ([1], [0, 3], [-1]):
        squeezed = np.expand_dims(x(3, 4), tuple(axes)) if axes != [0, 3] else x(1, 3, 4, 1)
        yield "Squeeze", 11, {"axes": axes}, [squeezed]
        yield "Squeeze", 13, {}, [squeezed, ints(*axes)], weights
        yield "Unsqueeze", 11, {"axes": axes}, [x(3, 4)]
        yield "Unsqueeze", 13, {}, [x(3, 4), ints(*axes)], weights
    yield "Squeeze", 11, {}, [x(1, 3, 1, 4)]
    reductions = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    for name in (f"Reduce{one}" for one in reductions):
        settings: tuple[dict[str, Any], ...] = (
            {"axes": [1]}, {"axes": [0, 2], "keepdims": 0}, {}, {"keepdims": 0}, {"axes": [-1]},
        )  # fmt: skip
        for one in settings:
            yield name, 11, one, [positive(2, 3, 4)]
        for axes in ([1], [0, 2], [-1], None):
            for kept in (0, 1):
                inputs = [positive(2, 3, 4)] + ([ints(*axes)] if axes else [])
                yield name, 18, {"keepdims": kept}, inputs, {"constants": [1] if axes else []}
        yield name, 18, {"noop_with_empty_axes": 1}, [positive(2, 3, 4)]
        yield name, 18, {"noop_with_empty_axes": 1}, [positive(2, 3, 4), ints()], weights
        yield name, 18, {}, [positive(2, 3, 4), ints()], weights
    for name in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in (0, 1, 2, -1, None):
            for opset in (7, 11, 13, 18):
                if axis is None or axis >= 0 or opset >= 11:
                    yield name, opset, {} if axis is None else {"axis": axis}, [x(2, 3, 4)]
    yield "Clip", 6, {"min": -0.5, "max": 0.5}, [x(3, 4)]
    yield "Clip", 6, {"max": 0.5}, [x(3, 4)]
    yield "Clip", 6, {}, [x(3, 4)]
    for mode in ("constant", "reflect", "edge"):
        for opset in (7, 10):
            yield "Pad", opset, {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "mode": mode}, [image]
            yield "Pad", opset, {"pads": [0, 0, 0, 2, 0, 0, 0, 0], "mode": mode}, [image]
        for opset in (11, 13, 18):
            pads = ints(0, 0, 1, 2, 0, 0, 2, 1)
            yield "Pad", opset, {"mode": mode}, [image, pads], weights
            yield "Pad", opset, {"mode": mode}, [image, pads, np.float32(1.5)], {"constants": [1, 2]}
    yield "Pad", 18, {}, [image, ints(1, 2), None, ints(3)], {"constants": [1, 3]}
    yield "Pad", 18, {"mode": "reflect"}, [image, ints(1, 1, 2, 2), None, ints(2, -1)], {"constants": [1, 3]}
    yield "Pad", 13, {}, [image, ints(0, 0, -1, 0, 0, 0, -1, 0)], weights
    yield "Pad", 19, {"mode": "wrap"}, [image, ints(0, 0, 1, 2, 0, 0, 2, 1)], weights
    yield "Slice", 9, {"starts": [1, 0], "ends": [2, 3], "axes": [0, 2]}, [image]
    yield "Slice", 9, {"starts": [0, -2], "ends": [1000, -1], "axes": [0, 3]}, [image]
    yield "Slice", 9, {"starts": [1], "ends": [2]}, [image]
    for ends, steps in (((1, 0), (1, 1)), ((5, 1), (2, 1)), ((-1, -4), (1, -1)), ((2**31, -(2**31)), (3, -2))):
        starts = ints(0, -1 if steps[1] < 0 else 0)
        yield "Slice", 13, {}, [image, starts, ints(*ends), ints(2, 3), ints(*steps)], {"constants": [1, 2, 3, 4]}
    for split, axis in (([1, 2], 1), ([2, 4], 2), ([1, 1], 0)):
        yield "Split", 11, {"split": split, "axis": axis}, [image], {"outputs": 2}
        yield "Split", 13, {"axis": axis}, [image, ints(*split)], {"outputs": 2, **weights}
    yield "Split", 7, {"axis": 2}, [image], {"outputs": 2}
    yield "Split", 13, {"axis": 2}, [image], {"outputs": 3}
    yield "Split", 18, {"axis": 3, "num_outputs": 2}, [image], {"outputs": 2}
    yield "Split", 18, {"axis": -1, "num_outputs": 3}, [image], {"outputs": 3}
    for mode in ("nearest", "linear"):
        yield "Upsample", 7, {"scales": [1.0, 1.0, 2.0, 2.0], "mode": mode}, [image]
        for scales in ((1, 1, 2, 2), (1, 1, 1.5, 2), (1, 1, 3, 1)):
            yield "Upsample", 9, {"mode": mode}, [image, np.array(scales, np.float32)], weights
        for scales in ((1, 1, 2, 2), (1, 1, 0.5, 0.6), (1, 1, 1.3, 2.7)):
            yield "Resize", 10, {"mode": mode}, [image, np.array(scales, np.float32)], weights
    for k, axis in ((2, -1), (3, 2), (1, 1)):
        yield "TopK", 8, {"k": k, "axis": axis}, [image], {"outputs": 2}
        yield "TopK", 10, {"axis": axis}, [image, ints(k)], {"outputs": 2, **weights}
        yield "TopK", 11, {"axis": axis, "largest": 0}, [image, ints(k)], {"outputs": 2, **weights}
    for ratio in (0.0, 0.5, 0.9):
        yield "Dropout", 7, {"ratio": ratio}, [x(3, 4)]
        yield "Dropout", 10, {"ratio": ratio}, [x(3, 4)]
        yield "Dropout", 13, {}, [x(3, 4), np.float32(ratio)], weights
    for opset in (7, 9, 14, 15):
        for epsilon in (1e-5, 1e-2):
            numbers = [positive(3) for _ in range(4)]
            yield "BatchNormalization", opset, {"epsilon": epsilon}, [image, *numbers], {"constants": [1, 2, 3, 4]}
    yield "BatchNormalization", 15, {}, [x(2, 3), *(positive(3) for _ in range(4))], {"constants": [1, 2, 3, 4]}
    yield "BatchNormalization", 15, {}, [x(2, 3, 4), *(positive(3) for _ in range(4))]
    for transposed in (0, 1):
        for opset in (7, 9, 11, 13):
            options = {"alpha": 0.5, "beta": 2.0, "transB": transposed}
            yield "Gemm", opset, options, [x(3, 4), x(5, 4) if transposed else x(4, 5), x(5)]
        yield "Gemm", 13, {"transA": 1, "transB": transposed}, [x(4, 3), x(5, 4) if transposed else x(4, 5)]
        yield "Gemm", 13, {"transA": 1}, [x(4, 3), x(4, 5), x(3, 1)]
    for to in (1, 6, 7, 9, 10, 11, 2, 3):
        yield "Cast", 9, {"to": to}, [np.array([-2.7, -0.5, 0.0, 0.5, 2.5, 7.9], np.float32)[3 if to == 2 else 0 :]]
    for shape in ((2, -1), (0, 15, -1), (6, 5, 3, 2)):
        yield "Reshape", 7, {}, [image, ints(*shape)], weights
        yield "Reshape", 14, {}, [image, ints(*shape)], weights
    yield "Reshape", 14, {"allowzero": 1}, [image, ints(5, 6, 6)], weights


def _few() -> Iterator[tuple[Any, ...]]:  # noqa: C901 - a list
    """Operators of which the standard has fewer than three vectors."""
    shapes = ((3, 4), (2, 3, 4, 5), (7,))
    for shape in shapes:
        for name in "Log Exp Acos Asin Atan Cos Cosh Sin Sinh Tan Tanh Sqrt Reciprocal Erf Sigmoid Atanh".split():
            yield name, 13, {}, [positive(*shape)]
        for name in "Asinh Neg Abs Floor Ceil Relu Sign Softplus Softsign HardSwish Mish Round".split():
            yield name, 22 if name == "Mish" else 14, {}, [3 * x(*shape)]
        yield "Acosh", 13, {}, [1 + positive(*shape)]
        yield "Round", 11, {}, [np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49], np.float32)]
        yield "IsNaN", 13, {}, [np.where(x(*shape) > 0, np.nan, 1).astype(np.float32)]
        yield "IsInf", 10, {}, [np.where(x(*shape) > 0, np.inf, 1).astype(np.float32)]
        yield "Where", 9, {}, [x(*shape) > 0, x(*shape), x(shape[-1])]
        yield "Size", 13, {}, [x(*shape)]
        yield "Shape", 13, {}, [x(*shape)]
        yield "Not", 7, {}, [x(*shape) > 0]
        yield "PRelu", 9, {}, [x(*shape), x(shape[-1])]
        yield "PRelu", 9, {}, [x(*shape), x(1)]
        yield "NonZero", 13, {}, [np.round(x(*shape))]
        yield "Identity", 13, {}, [x(*shape)]
        yield "ThresholdedRelu", 10, {"alpha": 0.3}, [x(*shape)]
        yield "Trilu", 14, {"upper": 0}, [x(2, *shape)]
    for shape in ((4, 1), (3, 1, 1), (1,)):  # slopes a channel
        yield "PRelu", 9, {}, [x(2, 3, 4) if shape[0] == 3 else x(2, 4, 5), x(*shape) if shape[0] != 3 else x(3, 1)]
    yield "PRelu", 9, {}, [x(2, 3, 4, 5), x(3, 1, 1)]
    for bias, lambd in ((0.0, 0.5), (0.5, 0.5), (-0.2, 1.0), (1.5, 1.5)):
        yield "Shrink", 9, {"bias": bias, "lambd": lambd}, [2 * x(3, 4)]
    for repeats in ((1, 2), (3, 1), (2, 2)):
        yield "Tile", 13, {}, [x(3, 4), ints(*repeats)], {"constants": [1]}
    for shape in ((2, 3, 4), (3, 1), (1, 3, 4)):
        yield "Expand", 13, {}, [x(3, 1), ints(*shape)], {"constants": [1]}
    for shape in ((2, 4, 5), (2, 4, 5, 6), (2, 4, 3, 3, 2)):
        yield "GlobalAveragePool", 9, {}, [x(*shape)]
        yield "GlobalMaxPool", 9, {}, [x(*shape)]
        for p in (1, 2, 3):
            yield "GlobalLpPool", 9, {"p": p}, [x(*shape)]
        yield "InstanceNormalization", 9, {}, [x(*shape), x(4), x(4)], {"constants": [1, 2]}
        yield "GroupNormalization", 21, {"num_groups": 2}, [x(*shape), x(4), x(4)], {"constants": [1, 2]}
        yield "GroupNormalization", 18, {"num_groups": 2}, [x(*shape), x(2), x(2)], {"constants": [1, 2]}
        yield "MeanVarianceNormalization", 13, {}, [x(*shape)]
        yield "LRN", 13, {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}, [x(*shape)]
        yield "LRN", 13, {"size": 5}, [x(*shape)]
        yield "LRN", 13, {"size": 2, "alpha": 2.0}, [x(*shape)]
    yield "MeanVarianceNormalization", 13, {"axes": [1, 2]}, [x(2, 3, 4)]
    for block, mode in ((2, "DCR"), (2, "CRD"), (3, "DCR")):
        yield "DepthToSpace", 13, {"blocksize": block, "mode": mode}, [x(1, 2 * block * block, 3, 2)]
        yield "SpaceToDepth", 13, {"blocksize": block}, [x(1, 3, 2 * block, 3 * block)]
    for shape in ((3, 4), (2, 3, 4)):
        low = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
        yield "MatMulInteger", 10, {}, [low, np.arange(20, dtype=np.int8).reshape(4, 5)]
        yield "MatMulInteger", 10, {}, [low, np.arange(20, dtype=np.int8).reshape(4, 5), np.uint8(3), np.int8(2)], {
            "constants": [2, 3]
        }  # fmt: skip
    rois = np.array([[0, 0, 0, 4, 4], [1, 1, 2, 5, 5], [0, 2, 2, 3, 3]], np.float32)
    for scale, pooled in ((1.0, [2, 2]), (0.5, [2, 1]), (2.0, [3, 3])):
        yield "MaxRoiPool", 9, {"pooled_shape": pooled, "spatial_scale": scale}, [x(2, 3, 8, 8), rois]
    for axis in (0, 1, -1):
        indices = np.array([[0, 1], [1, 0]], np.int64)
        yield "Gather", 13, {"axis": axis}, [x(3, 4), indices]
        yield "Gather", 13, {"axis": axis}, [x(3, 4), -1 - indices]
        yield "Gather", 13, {"axis": axis}, [x(3, 4), np.int64(1)], {"constants": [1]}
        yield "GatherElements", 13, {"axis": axis}, [x(2, 2), -1 - indices]
        yield "ScatterElements", 16, {"axis": axis}, [x(3, 4), indices, x(2, 2)]
        yield "ScatterElements", 18, {"axis": axis, "reduction": "max"}, [x(3, 4), -1 - indices, x(2, 2)]
        yield "CumSum", 14, {"exclusive": 1}, [x(3, 4), np.int64(axis)], {"constants": [1]}
        yield "CumSum", 14, {"reverse": 1}, [x(3, 4), np.int64(axis)], {"constants": [1]}
        yield "CumSum", 14, {}, [x(3, 4), np.int64(axis)], {"constants": [1]}
        yield "ArgMax", 13, {"axis": axis, "keepdims": 0}, [x(3, 4)]
        yield "ArgMin", 13, {"axis": axis, "select_last_index": 1}, [np.round(x(3, 4))]
        yield "OneHot", 11, {"axis": axis}, [ints(0, 2, -1), ints(3), np.array([-1, 2], np.float32)], {
            "constants": [1, 2]
        }  # fmt: skip
        yield "Concat", 13, {"axis": axis}, [x(3, 3), x(3, 3)]
        yield "Flatten", 13, {"axis": axis}, [x(2, 3, 4)]
        yield "LayerNormalization", 17, {"axis": axis or -2}, [x(2, 3, 4), x(4), x(4)] if axis in (-1,) else [
            x(2, 3, 4), x(3, 4), x(3, 4)
        ]  # fmt: skip
    yield "Compress", 11, {"axis": 1}, [x(3, 4), np.array([True, False, True, True])], {"constants": [1]}
    yield "EyeLike", 9, {"k": 1}, [x(3, 4)]
    yield "EyeLike", 9, {"k": -1, "dtype": 6}, [x(3, 4)]
    yield "Range", 11, {}, [np.float32(0), np.float32(7), np.float32(2)], {"constants": [0, 1, 2]}
    yield "ConstantOfShape", 9, {}, [ints(2, 3)], {"constants": [0]}
    for name, values in (("Mod", {"fmod": 1}), ("Mod", {})):
        kind = np.float32 if values else np.int32
        yield name, 13, values, [np.array([-7, 7, -7, 7], kind), np.array([3, 3, -3, -3], kind)]
    for kind in (np.int32, np.int64):
        yield "Div", 14, {}, [np.array([-7, 7, -7, 7], kind), np.array([2, 2, -2, -2], kind)]
        yield "Pow", 15, {}, [np.array([-2, 3, 2], kind), np.array([3, 2, 5], kind)]
    products = ("ij,jk->ik", [x(2, 3), x(3, 4)]), ("bij,bjk", [x(2, 2, 3), x(2, 3, 4)]), ("ii->i", [x(3, 3)])
    for equation, inputs in products:
        yield "Einsum", 12, {"equation": equation}, inputs
    for alpha, beta in ((0.2, 0.5), (0.1, 0.3), (0.5, 0.0)):
        yield "HardSigmoid", 6, {"alpha": alpha, "beta": beta}, [3 * x(3, 4)]
        yield "Selu", 6, {"alpha": 1.0 + alpha, "gamma": 1.0 + beta}, [x(3, 4)]
        yield "Elu", 6, {"alpha": alpha}, [x(3, 4)]
        yield "LeakyRelu", 6, {"alpha": beta}, [x(3, 4)]
        yield "Gelu", 20, {"approximate": "tanh" if alpha == 0.2 else "none"}, [x(3, 4)]


def _layers() -> Iterator[tuple[Any, ...]]:  # noqa: C901 - a list
    weights, line, cube = {"constants": [1]}, {"constants": [1, 2]}, x(1, 2, 4, 5, 4)
    for one in (
        {}, {"strides": [2, 2]}, {"pads": [1, 2, 0, 1]}, {"dilations": [2, 1]}, {"auto_pad": "VALID"},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "SAME_UPPER", "dilations": [2, 2]},
        {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 3]},
    ):  # fmt: skip
        yield "Conv", 11, one, [x(1, 4, 9, 8), x(6, 4, 3, 3), x(6)], line
        yield "Conv", 11, {**one, "group": 2}, [x(2, 4, 9, 8), x(6, 2, 3, 3)], weights
        if "dilations" not in one or "auto_pad" not in one:
            yield "ConvTranspose", 11, one, [x(1, 4, 5, 6), x(4, 3, 3, 3)], weights
    yield "Conv", 11, {"group": 4, "pads": [1, 1]}, [x(1, 4, 9), x(8, 1, 3)], weights
    yield "Conv", 11, {"strides": [2, 1, 2], "auto_pad": "SAME_UPPER"}, [cube, x(3, 2, 3, 2, 3)], weights
    for one in (
        {"strides": [2, 2], "output_shape": [10, 10]}, {"strides": [2, 2], "output_shape": [12, 13]},
        {"strides": [3, 2], "output_padding": [2, 1]},
        {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]},
        {"group": 2, "strides": [2, 2]}, {"dilations": [2, 2]}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "output_shape": [9, 9], "auto_pad": "SAME_LOWER"},
        {"pads": [1, 0, 0, 2], "strides": [2, 2]}, {"strides": [1, 1], "output_shape": [7, 7]},
        {"strides": [2, 2], "output_shape": [11, 11]},
    ):  # fmt: skip
        yield "ConvTranspose", 11, one, [x(1, 4, 5, 5), x(4, 2, 3, 3)], weights
        yield "ConvTranspose", 11, one, [x(2, 4, 5, 5), x(4, 3, 3, 3), x(3 * one.get("group", 1))], line
    yield "ConvTranspose", 11, {"strides": [2]}, [x(1, 4, 5), x(4, 3, 3)], weights
    yield "ConvTranspose", 11, {"strides": [2], "output_shape": [10]}, [x(1, 4, 5), x(4, 3, 3)], weights
    yield "ConvTranspose", 11, {"strides": [2, 1, 2]}, [cube, x(2, 3, 2, 3, 3)], weights
    pools = {"AveragePool": ({}, {"count_include_pad": 1}), "MaxPool": ({},), "LpPool": ({}, {"p": 3})}
    for name, kinds in pools.items():
        for kind in kinds:
            for one in (
                {"kernel_shape": [3, 2]}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
                {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
                {"kernel_shape": [2, 2], "dilations": [2, 2]},
                {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
                {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
                {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [0, 1, 1, 0]},
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
                {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            ):  # fmt: skip
                opset = 19 if name == "AveragePool" else 18 if name == "LpPool" else 12
                yield name, opset, {**kind, **one}, [x(1, 3, 8, 7)]
                if "dilations" not in one and "ceil_mode" not in one:
                    yield name, 7, {**kind, **one}, [x(1, 3, 8, 7)]
            yield name, 11, {**kind, "kernel_shape": [3], "strides": [2]}, [x(1, 3, 8)]
            yield name, 11, {**kind, "kernel_shape": [2, 3, 2], "pads": [0, 1, 0, 0, 1, 0]}, [cube]
    yield "MaxPool", 12, {"kernel_shape": [2, 2], "strides": [2, 2]}, [x(1, 2, 4, 4)], {"outputs": 2}
    for mode in ("nearest", "linear", "cubic"):
        for transformed in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            for sizes in ((1, 2, 8, 9), (1, 2, 3, 4), (1, 2, 5, 11)):
                yield (
                    "Resize", 13, {"mode": mode, "coordinate_transformation_mode": transformed},
                    [x(1, 2, 5, 6), None, None, ints(*sizes)], {"constants": [3]},
                )  # fmt: skip
            for scales in ((1, 1, 1.5, 1.3), (1, 1, 0.6, 0.7)):
                yield (
                    "Resize", 11, {"mode": mode, "coordinate_transformation_mode": transformed},
                    [x(1, 2, 5, 6), np.array([], np.float32), np.array(scales, np.float32)], {"constants": [1, 2]},
                )  # fmt: skip
        for rounded in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
            yield (
                "Resize", 13, {"mode": mode, "nearest_mode": rounded, "coordinate_transformation_mode": "asymmetric"},
                [x(1, 2, 5, 6), None, np.array([1, 1, 1.6, 0.7], np.float32)], {"constants": [2]},
            )  # fmt: skip
    grid = (2 * x(2, 5, 7, 2)).clip(-1.2, 1.2)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                yield "GridSample", 16, options, [x(2, 3, 6, 8), grid]
    boxes = np.array([[0.5, 0.5, 5, 6], [1, 1, 7, 4]], np.float32)
    for mode in ("avg", "max"):
        for ratio in (0, 2):
            options = {"mode": mode, "output_height": 3, "output_width": 2, "spatial_scale": 0.8}
            options["sampling_ratio"] = ratio
            for opset in (10, 16):
                yield "RoiAlign", opset, options, [x(2, 3, 8, 8), boxes, ints(0, 1)]
    yield "RoiAlign", 16, {"coordinate_transformation_mode": "output_half_pixel"}, [x(2, 3, 8, 8), boxes, ints(1, 1)]
    low = np.array([[-5, 0.3, 1.7], [2.5, 3.5, 120]], np.float32)
    scales = [(1, np.float32(0.5), np.uint8(3)), (0, x(2) ** 2 + 0.1, np.array([3, 5], np.uint8))]
    for axis, scale, zero in [*scales, (1, x(3) ** 2 + 0.1, np.array([0, -3, 2], np.int8))]:
        for opset in (10, 13, 19, 21):
            if opset > 10 or np.ndim(scale) == 0:
                options = {} if opset == 10 else {"axis": axis}
                yield "QuantizeLinear", opset, options, [low, np.asarray(scale), np.asarray(zero)], line
                stored = np.arange(6).reshape(2, 3).astype(np.asarray(zero).dtype)
                yield "DequantizeLinear", opset, options, [stored, np.asarray(scale), np.asarray(zero)], line


def _microsoft() -> Iterator[tuple[Any, ...]]:
    named = {"domain": MICROSOFT}
    for shape in ((3, 8), (2, 3, 8), (1, 4, 8)):
        last = shape[-1]
        yield "FastGelu", 18, {}, [x(*shape)], named
        yield "FastGelu", 18, {}, [x(*shape), x(last)], {**named, "constants": [1]}
        yield "BiasGelu", 18, {}, [x(*shape), x(last)], {**named, "constants": [1]}
    for shape in ((2, 3, 8), (1, 4, 8), (3, 2, 16)):
        last = shape[-1]
        for epsilon in (1e-5, 1e-1):
            given = [x(*shape), x(*shape), x(last), x(last), x(last)]
            yield "SkipLayerNormalization", 18, {"epsilon": epsilon}, given, {**named, "constants": [2, 3, 4]}
            yield "SkipLayerNormalization", 18, {"epsilon": epsilon}, given[:4], {**named, "constants": [2, 3]}
        words, places, kinds = x(11, last), x(7, last), x(2, last)
        ids = _random.integers(0, 11, shape[:2]).astype(np.int32)
        segments = _random.integers(0, 2, shape[:2]).astype(np.int32)
        given = [ids, segments, words, places, kinds, x(last), x(last)]
        yield "EmbedLayerNormalization", 18, {}, given, {**named, "constants": [2, 3, 4, 5, 6], "outputs": 2}
    for shape in ((3, 4), (2, 3, 4)):
        low = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
        yield "MatMulInteger16", 18, {}, [low, np.arange(20, dtype=np.int16).reshape(4, 5)], named
