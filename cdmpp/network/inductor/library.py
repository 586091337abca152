"""Calls that Inductor leaves to the libraries -> framework operators."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten import calls_of, name_of
from cdmpp.operators.aten_attention import attention_of, choose
from cdmpp.operators.aten_convolution import convolution_of, image_of, stands_for
from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.attention import BACKWARD
from cdmpp.operators.operator import ATTENTION as FUSED
from cdmpp.operators.operator import EagerOperator


class _Plain(NamedTuple):
    """It stands for a node of a graph."""

    args: tuple[Any, ...]
    meta: dict[str, Any]


class LibraryCall(NamedTuple):
    """One call of a library."""

    operators: tuple[EagerOperator, ...]
    stands_for: str = ""


class Attending(NamedTuple):
    """It decides about the kernel of attention."""

    place: str
    """Architecture of the GPU, as of ``backend_of``; so is ``asked``."""
    asked: str
    trains: bool = False
    """A gradient goes through it."""
    dropout: float = 0.0
    """Share of the weights that are dropped, which the graph that was traced on a CPU does not have."""


def library_call(buffer: Any, io_bytes: int, attending: Attending) -> LibraryCall:
    """Return the operators of an ``ExternKernel`` of Inductor's IR, which moves ``io_bytes``.

    Products are read from the operands that Inductor gives them, so nothing is copied before them: Inductor makes a
    copy a kernel of its own. ``UnsupportedProgramError`` names what nothing can answer for.
    """
    kernel = str(getattr(buffer, "python_kernel_name", None) or type(buffer).__name__)
    name = kernel.removeprefix("extern_kernels.")
    if name in ("mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm"):
        return LibraryCall((_product(buffer, name),))
    origin = _origin(buffer)
    origin_name = "" if origin is None else name_of(origin)
    if origin is not None and origin_name == "convolution":
        return _convolution(origin)
    if origin is not None and origin_name == "convolution_backward":
        asked_for = origin.args[-1][:2]
        forward = _convolution(_Plain(origin.args[1:3] + (None, *origin.args[4:10]), origin.args[0].meta))
        return LibraryCall(forward.operators * sum(asked_for), forward.stands_for)
    if "attention" in kernel and origin is not None:
        return LibraryCall(_attention(origin, attending))
    if origin_name == "inductor_seeds":  # a number for each dropout
        return LibraryCall((moved(Traffic(0, max(io_bytes, 8)), "float32"),), "random seeds")
    if origin is not None and not origin_name.endswith("_backward"):
        try:
            found = calls_of(origin)
        except UnsupportedProgramError as error:
            raise UnsupportedProgramError(f"torch.compile leaves {kernel} to a library: {error}") from error
        if found.operators:
            return LibraryCall(found.operators, found.stands_for)
    if not io_bytes:
        raise UnsupportedProgramError(
            f"torch.compile calls {kernel} between its kernels, of which nothing is known; --runtime torch may answer"
        )
    return LibraryCall((moved(Traffic(0, io_bytes), "float32"),), kernel)


def _origin(buffer: Any) -> Any | None:
    """Return the node of the graph that a call was made for; None where it is of none."""
    if (node := getattr(buffer, "origin_node", None)) is not None:
        return node
    overload = getattr(buffer, "op_overload", None)
    return next((node for node in buffer.get_origins() if overload is not None and node.target is overload), None)


def _convolution(node: Any) -> LibraryCall:
    """Without its bias, which Inductor adds in a kernel of its own."""
    value = node.meta["val"]
    made = convolution_of(node, "convolution", image_of(node), shape_of(value), dtype_of(value))
    return LibraryCall((made,), stands_for(node, "convolution"))


def _product(buffer: Any, name: str) -> EagerOperator:
    import torch

    given = [one for one in buffer.inputs if len(one.get_size()) == (3 if "bmm" in name else 2)]
    x, y = given[-2:]
    *many, rows, inner = (int(size) for size in x.get_size())
    cols, dtype = int(y.get_size()[-1]), str(buffer.get_dtype()).removeprefix("torch.")
    if buffer.get_dtype() == torch.int32:
        raise UnsupportedProgramError("a product of whole numbers (_int_mm): nobody measured one")
    if many:
        across = int(int(y.get_stride()[-1]) != 1 and int(y.get_stride()[-2]) == 1)
        sizes = {"batch": math.prod(many), "rows": rows, "inner": inner, "cols": cols, "transposed": across}
        return EagerOperator("bmm", sizes, dtype)
    return EagerOperator("linear", {"rows": rows, "inner": inner, "cols": cols, "bias": int("addmm" in name)}, dtype)


def _attention(node: Any, attending: Attending) -> tuple[EagerOperator, ...]:
    """Take the kernel that a GPU chooses, whichever was there for the tensors of a CPU."""
    is_backward = name_of(node).endswith(BACKWARD)
    place = [argument.name for argument in node.target._schema.arguments].index("dropout_p")
    if place < len(node.args):
        node.update_arg(place, attending.dropout)
    else:
        node.update_kwarg("dropout_p", attending.dropout)
    choose(node, attending.place, attending.asked, trains=attending.trains, mask_trains=False)
    *before, fused = attention_of(node)[0]
    if not is_backward:
        return (*before, fused)
    if fused.kind.family != FUSED:
        raise UnsupportedProgramError(
            f"{name_of(node)}: a GPU takes attention by math here, whose gradient is not read"
        )
    return (EagerOperator(f"{fused.name}{BACKWARD}", fused.sizes, fused.dtype),)
