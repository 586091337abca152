"""TVM's importer of torch, every value of which is compared with what torch exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.declared import Declared
from cdmpp.programs.refusal import place_in_model
from cdmpp.programs.torch_repairs import repairs


def imported(
    exported: Any, keep_params_as_input: bool = True, extra: Mapping[str, Callable[[Any, Any], Any]] | None = None
) -> Any:
    """Relax module of a ``torch.export.ExportedProgram`` of the operators that TVM converts.

    Args:
        exported: decomposed as far as it is to be.
        keep_params_as_input: parameters are inputs, after the others; else they are constants.
        extra: name of an operator -> what converts it instead of TVM; each takes the node and the importer.

    Raises:
        CdmppError: a value has another shape or type than torch says; it names the operator, its place and both.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):  # type: ignore[misc]
        """Converts node by node, each checked where it is made."""

        def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
            others = {**repairs(), **(extra or {})}
            known = super().create_convert_map() | {name: _with(self, one) for name, one in others.items()}
            return {name: partial(_checked, one) for name, one in known.items()}

    importer = Importer()
    try:
        return importer.from_exported_program(exported, keep_params_as_input, False, False, None)
    except Exception:
        importer.block_builder = None  # dies here, where nobody hears that it complains
        raise


def _with(importer: Any, convert: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda node: convert(node, importer)


def _checked(convert: Callable[[Any], Any], node: Any) -> Any:
    """What ``convert`` makes of a node, if it is the tensor that torch makes of it."""
    value, known = convert(node), node.meta.get("val")
    if not hasattr(known, "dtype") or not hasattr(known, "shape"):  # several tensors, each of which is taken by a node
        return value
    sizes = [size if isinstance(size, int) else None for size in known.shape]
    if fault := Declared(sizes, str(known.dtype).removeprefix("torch.")).fault(value):
        raise CdmppError(f"what the torch operator {_name(node)} makes {fault}")
    return value


def _name(node: Any) -> str:
    place = place_in_model(node)
    return f"{node.target.__name__} (node {node.name}{f', {place}' if place else ''})"
