"""A small valid ONNX file, each field of it changed in turn: refused in one sentence, or read as the standard says."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

from cdmpp.errors import CdmppError

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.tvm

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from cdmpp.network.source.onnx import relax_of_onnx  # noqa: E402

NUMBERS = (-1, 0, 1, 5, 99, 2**40, 2**62)
TEXTS = ("", "other", "x", "image", "Relu", "com.example", "weight", "\n")


def small():
    """A convolution, an activation, a reshape and a product, with attributes of every type but graphs."""
    weights = {
        "kernel": np.ones((4, 3, 3, 3), np.float32),
        "sizes": np.array([0, -1], np.int64),
        "weight": np.ones((5, 4 * 16), np.float32),
        "bias": np.ones(5, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["a"], "first", strides=[2, 2], auto_pad="SAME_UPPER", group=1),
        helper.make_node("LeakyRelu", ["a"], ["b"], "second", alpha=0.1),
        helper.make_node("Reshape", ["b", "sizes"], ["c"], "third"),
        helper.make_node("Gemm", ["c", "weight", "bias"], ["y"], "last", transB=1, alpha=0.5),
    ]
    values = [("a", [2, 4, 4, 4]), ("c", [2, 64])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def places(message, path=()):
    """Paths of names and indices to each field that is set, and to each part of those that are lists."""
    for field, value in message.ListFields():
        if not field.is_repeated:
            yield (*path, field.name), field
            if field.message_type is not None:
                yield from places(value, (*path, field.name))
            continue
        yield (*path, field.name), field
        for number, one in enumerate(value if field.message_type is not None else value[:3]):
            yield (*path, field.name, number), field
            if field.message_type is not None:
                yield from places(one, (*path, field.name, number))


def changed(model, path, change):
    """A copy in which ``change(owner, name or number)`` was done where ``path`` ends."""
    made = copy.deepcopy(model)
    owner = made
    for step in path[:-1]:
        owner = owner[step] if isinstance(step, int) else getattr(owner, step)
    change(owner, path[-1])
    return made


def changes(field, last):
    """What may be done to a field or a part of a list."""
    if isinstance(last, int):
        yield "without it", lambda owner, number: owner.__delitem__(number)
        twice = (lambda owner, number: owner.add().CopyFrom(owner[number])) if field.message_type else None
        yield "twice", twice or (lambda owner, number: owner.append(owner[number]))
        if field.message_type is None:
            for value in TEXTS if field.cpp_type == field.CPPTYPE_STRING else NUMBERS:
                if field.cpp_type != field.CPPTYPE_FLOAT:
                    yield repr(value), lambda owner, number, value=value: owner.__setitem__(number, value)
        return
    yield "without it", lambda owner, name: owner.ClearField(name)
    if field.message_type is not None or field.is_repeated:
        return
    if field.type == field.TYPE_BYTES:
        yield "cut", lambda owner, name: setattr(owner, name, getattr(owner, name)[:-3])
        yield "longer", lambda owner, name: setattr(owner, name, getattr(owner, name) + b"abcd")
    elif field.cpp_type == field.CPPTYPE_STRING:
        for value in TEXTS:
            yield repr(value), lambda owner, name, value=value: setattr(owner, name, value)
    elif field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_ENUM):
        for value in NUMBERS if field.cpp_type == field.CPPTYPE_INT64 else NUMBERS[:5]:
            yield repr(value), lambda owner, name, value=value: setattr(owner, name, value)


def mutants():
    model = small()
    for path, field in places(model):
        for what, change in changes(field, path[-1]):
            try:
                yield f"{'.'.join(map(str, path))}: {what}", changed(model, path, change)
            except (ValueError, TypeError):  # protobuf itself refuses the value
                continue


def results_of(model):
    """Shapes and types of the results by the standard's own evaluator; None where it cannot run the model."""
    given = {}
    for value in model.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if np.prod(sizes, dtype=float) > 1e6:
            return "large"
        given[value.name] = np.ones(sizes, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    found = ReferenceEvaluator(model).run(None, given)
    return [(list(one.shape), str(one.dtype)) for one in found]


def imported_results(path):
    kind = relax_of_onnx(path, None, None)["main"].ret_ty
    kinds = list(kind.fields) if hasattr(kind, "fields") else [kind]
    return [([int(size) for size in one.shape.values], str(one.dtype)) for one in kinds]


def test_each_field_of_a_small_file_changed(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(small(), path)
    right = imported_results(path)
    assert right == results_of(small()) == [([2, 5], "float32")]
    answered, refused, wrong = 0, set(), []
    for what, model in mutants():
        path.write_bytes(model.SerializeToString())
        try:
            found = imported_results(path)
        except CdmppError as error:
            assert "\n" not in str(error) and len(str(error)) < 900, (what, str(error))
            refused.add(what)
            continue
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
            continue
        answered += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert all(one.version <= onnx.defs.onnx_opset_version() for one in model.opset_import)
                assert all(node.domain in ("", "ai.onnx") for node in model.graph.node)
                if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):  # others have it free
                    onnx.checker.check_model(model, full_check=True)
                expected = results_of(model)
            except Exception as error:
                wrong.append(f"{what}: answered {found}, but by the standard {type(error).__name__}: {error}")
                continue
        if expected not in ("large", found):
            wrong.append(f"{what}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)
    assert len(refused) > 150 and answered > 80
