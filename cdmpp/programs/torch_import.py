"""TVM's importer of torch, every value of which is compared with what torch exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.declared import ADVICE, Declared
from cdmpp.programs.known_faults import refused_fault
from cdmpp.programs.refusal import place_in_model
from cdmpp.programs.torch_repairs import repairs

_PLACES = "max_pool2d_with_indices_backward"
"""Looks for the largest again, so that it does not read its last argument, which TVM keeps in another type."""


def imported(
    exported: Any, keep_params_as_input: bool = True, extra: Mapping[str, Callable[[Any, Any], Any]] | None = None
) -> Any:
    """Import a ``torch.export.ExportedProgram`` of the operators that TVM converts as a Relax module.

    Args:
        exported: decomposed as far as it is to be.
        keep_params_as_input: parameters are inputs, after the others; else they are constants.
        extra: name of an operator -> what converts it instead of TVM; each takes the node and the importer.

    Raises:
        CdmppError: a value has another shape or type than torch says; it names the operator, its place and both.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):  # type: ignore[misc]
        """It converts node by node, each checked where it is made."""

        def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
            others = {**repairs(), **(extra or {})}
            known = super().create_convert_map() | {name: _with(self, one) for name, one in others.items()}
            return {name: partial(_checked, one, frozenset(others)) for name, one in known.items()}

    importer = Importer()
    try:
        return importer.from_exported_program(exported, keep_params_as_input, False, False, None)
    except Exception:
        importer.block_builder = None  # dies here, where nobody hears that it complains
        raise


def _with(importer: Any, convert: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda node: convert(node, importer)


def _checked(convert: Callable[[Any], Any], ours: frozenset[str], node: Any) -> Any:
    """The result of ``convert`` for a node, if it is what torch makes of it; ``ours`` are not TVM's to convert."""
    name = node.target.__name__
    if (fault := refused_fault("torch", name, _facts(node))) and name not in ours:
        raise CdmppError(f"the torch operator {_name(node)} {fault}. {ADVICE[0].upper()}{ADVICE[1:]}")
    value, known = convert(node), node.meta.get("val")
    if all(_PLACES in str(user.target) and user.args[-1] is node for user in node.users):
        return value
    if not hasattr(known, "dtype") or not hasattr(known, "shape"):  # several tensors: those that are used are nodes
        return value
    sizes = [size if isinstance(size, int) else None for size in known.shape]
    if fault := Declared(sizes, str(known.dtype).removeprefix("torch.")).fault(value):
        raise CdmppError(f"what the torch operator {_name(node)} makes {fault}")
    return value


def _facts(node: Any) -> dict[str, Any]:
    """Arguments by their names in the schema, those left out by their defaults; and the first tensor's type."""
    schema = getattr(node.target, "_schema", None)
    found = {one.name: one.default_value for one in schema.arguments if one.has_default_value()} if schema else {}
    given = dict(zip([one.name for one in schema.arguments], node.args, strict=False)) if schema else {}
    found |= {name: value for name, value in {**given, **node.kwargs}.items() if not hasattr(value, "meta")}
    first: Any = next((one.meta.get("val") for one in node.all_input_nodes), None)
    if hasattr(first, "shape"):
        found |= {
            "rank": len(first.shape),
            "shape": list(first.shape),
            "dtype": str(first.dtype).removeprefix("torch."),
        }
    return found


def _name(node: Any) -> str:
    place = place_in_model(node)
    return f"{node.target.__name__} (node {node.name}{f', {place}' if place else ''})"
