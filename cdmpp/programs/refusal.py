"""Refusals of models that cannot be imported: errors of torch and TVM as a sentence that names operator and place."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError, some

_BY_TORCH = ", or by PyTorch's own kernels (--runtime torch)"
_EXPERTS = "model.set_experts_implementation('grouped_mm') where transformers goes through experts one by one; else "
_MACHINERY = ("torch", "tvm", "tvm_ffi", "onnx", "cdmpp", "python", "tvm-ffi")
"""Packages in whose files no reader would look for a mistake in a model."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what importers print and log on their way to an error, or to none."""
    before, screen = logging.root.manager.disable, os.dup(2)
    logging.disable(logging.CRITICAL)
    try:
        with open(os.devnull, "wb") as nothing:  # TVM warns from C++, hundreds of times for some networks
            os.dup2(nothing.fileno(), 2)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        logging.disable(before)


def export_refusal(error: Exception, model: str) -> CdmppError:
    """Make the refusal for an ``error`` of ``torch.export`` on the module of class ``model``."""
    place = place_of(error)
    told = f"{model} cannot be exported{_at(place)}: "
    remedy = _EXPERTS if "expert" in place else ""
    if "DataDependent" in type(error).__name__ or "data-dependent" in str(error):
        return CdmppError(
            f"{told}what runs there depends on the values of tensors. Only networks that run the same operators for "
            f"every input can be predicted: {remedy}take that part out, give the part of the model that is fixed, or "
            "say how many a selection by value keeps (boxes, --boxes, of PyTorch's own kernels)"
        )
    return CdmppError(
        f"{told}{first_line(error)}. torch.export.export(model, example_inputs) must work: check that the example "
        "inputs are tensors of the sizes that forward takes"
    )


def import_refusal(error: Exception, exported: Any) -> CdmppError:
    """Make the refusal for an ``error`` of TVM on a ``torch.export.ExportedProgram``."""
    if missing := re.findall(r"'([^']+)'", str(error)) if "Unsupported function types" in str(error) else []:
        return CdmppError(
            f"TVM cannot import the torch operator {', '.join(_with_places(missing, exported))}: replace it in the "
            f"model by operators that TVM knows, or predict the network without the part that it belongs to{_BY_TORCH}"
        )
    node = node_at_fault(error, "target")
    if node is not None and node.op != "call_function":
        node = None
    if node is None:
        if constants := [value for value in exported.graph_signature.user_inputs if not isinstance(value, str)]:
            given = some([repr(value) for value in constants], ", ")
            return CdmppError(f"example inputs must be tensors (here {given}): fix others inside a module of your own")
        return CdmppError(f"TVM cannot import the exported model: {first_line(error)}")
    what = getattr(node.target, "__name__", node.target)
    return CdmppError(
        f"TVM cannot import the torch operator {what}{_at(place_in_model(node))}: {first_line(error)}. Replace it in "
        f"the model, or predict the network without the part that it belongs to{_BY_TORCH}"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of a message, or the type without one; no full stop, 300 letters at most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = textwrap.shorten(lines[0].rstrip("."), 300, placeholder=" ...") if lines else type(error).__name__
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError | AttributeError) and lines else text


def place_of(error: BaseException) -> str:
    """Return ``file:line, code`` of the innermost line of an error outside torch and TVM; empty where none is."""
    return _place_in(traceback.extract_tb(error.__traceback__))


def place_here() -> str:
    """Return the same of the innermost line that is being run now."""
    return _place_in(traceback.extract_stack())


def _place_in(frames: traceback.StackSummary) -> str:
    for frame in reversed(frames):
        parts = Path(frame.filename).parts
        package = parts[parts.index("site-packages") + 1] if "site-packages" in parts else ""
        inner = package in _MACHINERY or f"{Path(__file__).parent.parent}" in frame.filename
        if not inner and Path(frame.filename).is_file() and not Path(frame.filename).is_relative_to(_STDLIB):
            return f"{frame.filename}:{frame.lineno}, `{frame.line}`"
    return ""


_STDLIB = Path(logging.__file__).parent.parent


def node_at_fault(error: BaseException, mark: str) -> Any:
    """Return the node that an importer was converting: the variable ``node``, with a ``mark``, of its loop."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = frame.f_locals["node"] if hasattr(frame.f_locals.get("node"), mark) else found
    return found


def _with_places(operators: list[str], exported: Any) -> list[str]:
    from torch import fx

    places: dict[str, str] = {}
    graphs = [exported.graph, *(m.graph for m in exported.graph_module.modules() if isinstance(m, fx.GraphModule))]
    for node in (node for graph in graphs for node in graph.nodes):
        name = getattr(node.target, "__name__", "")
        for operator in operators:  # decomposed: aten.linalg_svd became aten._linalg_svd
            if name.split(".")[0].strip("_") == operator.split(".")[0].strip("_"):
                places.setdefault(operator, place_in_model(node))
    return [f"{operator}{_at(places.get(operator, ''))}" for operator in operators]


def place_in_model(node: Any) -> str:
    """Return path of the torch module that ran the node, its class and the line."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1][:2] if stack else ("", "")
    module = f"{path or 'the model'} ({str(kind).rsplit('.', 1)[-1]})" if stack else ""
    lines = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return ", ".join(filter(None, [module, f"{lines[-1][0]}:{lines[-1][1]}" if lines else ""]))


def _at(place: str) -> str:
    return f" at {place}" if place else ""
