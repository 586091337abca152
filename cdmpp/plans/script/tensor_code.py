"""Tensor code: the lines of PyTorch that divide a model among tensor parallel ranks, as ``parallelize_module`` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.plans.cut_places import WRAPPED
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.strategies.tensor_layout import LOSS, ROW, Layout

COLUMNS = "ColwiseParallel"
_REFUSED = "--torch: no script can be written of tensor parallelism"


@dataclass(frozen=True)
class TensorCode:
    """Styles of the modules that are divided.

    ``CdmppError`` for a model that ``parallelize_module`` cannot divide as the plan says.
    """

    lines: tuple[str, ...]
    """They divide ``model``."""
    divides_loss: bool
    """True if loss and backward pass stand in ``loss_parallel()``."""


def tensor_code(workload: Workload, strategy: Tensor, axes: str, is_cut: bool = False) -> TensorCode:
    """Write the styles.

    Args:
        workload: the whole network.
        strategy: how it is divided.
        axes: ``DeviceMesh`` of the ranks, in Python.
        is_cut: True if ``model`` is a stage, which has some of the modules.
    """
    if strategy.shared_inputs:
        raise CdmppError(
            f"{_REFUSED} with shared inputs: parallelize_module gathers an input for each layer that reads it"
        )
    if strategy.experts != "whole":
        raise CdmppError(f"{_REFUSED} with experts {strategy.experts}: parallelize_module has no style for them")
    if strategy.sequence_parallel and str(workload.network).startswith("hf:"):
        raise CdmppError(
            f"{_REFUSED} along the sequence of {workload.network}: transformers counts positions in what a rank has; "
            "give sequence_parallel: false, or file.py:FUNCTION"
        )
    exported = export_step(workload).exported
    layout = strategy.layout(exported)
    styles = dict(_styles(layout, exported, strategy.sequence_parallel))
    text = ", ".join(f"{name!r}: {style}" for name, style in styles.items())
    lines = [f"styles = {{{text}}}", f"parallelize_module(model, {axes}, styles)"]
    if is_cut:
        lines = [
            lines[0],
            "modules = {name for name, _ in model.named_modules()}",
            f"parallelize_module(model, {axes}, {{name: one for name, one in styles.items() if name in modules}})",
        ]
    for name, owner in _shared(layout).items():
        tie = f"model.get_submodule({name!r}).weight = model.get_submodule({owner!r}).weight"
        lines += [f"if {{{name!r}, {owner!r}}} <= modules:", f"    {tie}"] if is_cut else [tie]
    return TensorCode(tuple(lines), LOSS in layout.roles.values())


def _shared(layout: Layout) -> dict[str, str]:
    """Map linear layers whose weight is that of an embedding to its module: ``parallelize_module`` parts them."""
    words = _words(layout)
    return {
        _module_of(node): words[one.parameter.name]
        for node, one in layout.linears.items()
        if node in layout.roles and one.parameter.name in words
    }


def _words(layout: Layout) -> dict[str, str]:
    """Map the placeholders of embeddings to their modules."""
    tables = [node for node, role in layout.roles.items() if node not in layout.linears and role != LOSS]
    return {node.args[0].name: _module_of(node) for node in tables}


def _styles(layout: Layout, exported: Any, is_sequence: bool) -> Iterator[tuple[str, str]]:
    """Modules and their styles, in the order of the model."""
    names = exported.graph_signature.inputs_to_parameters
    if layout.sliced:
        raise CdmppError(
            f"{_REFUSED} along the sequence of a model with a table of positions, {next(iter(layout.sliced)).name}: "
            "no style divides what it gives"
        )
    tables = [node for node, role in layout.roles.items() if node not in layout.linears and role != LOSS]
    words = _words(layout)
    between = "layouts=Shard(1)" if is_sequence else ""
    for node, one in layout.linears.items():
        if (role := layout.roles.get(node)) is None:
            continue
        parameter = names[one.parameter.name]
        if one.columns != 0:
            raise CdmppError(f"{_REFUSED} of {parameter}: parallelize_module divides nn.Linear and nn.Embedding alone")
        module = _module_of(node) if one.parameter.name in words else _module(parameter)
        yield module, _row(between) if role == ROW else _column(layout, node, between)
    for node in tables:
        is_row = layout.roles[node] == ROW
        yield (
            words[node.args[0].name],
            _row(between, "input_layouts=Replicate()") if is_row else f"{COLUMNS}()",
        )
    for name in dict.fromkeys(_module(names[one.name]) for one in layout.partial if is_sequence):
        yield name, "SequenceParallel(use_local_output=True)"


def _row(between: str, given: str = "") -> str:
    return f"RowwiseParallel({', '.join(filter(None, (given, between and f'output_{between}')))})"


def _column(layout: Layout, node: Any, between: str) -> str:
    left = "output_layouts=Replicate()" if node in layout.gathered else ""
    if not left and LOSS in layout.roles.values() and _is_scored(layout, node):
        left = "use_local_output=False"
    return f"{COLUMNS}({', '.join(filter(None, (between and f'input_{between}', left)))})"


def _is_scored(layout: Layout, node: Any) -> bool:
    """True if a loss of divided scores reads what a layer gives."""
    seen, open_ = set[Any](), [node]
    while open_:
        for user in open_.pop().users:
            if layout.roles.get(user) == LOSS:
                return True
            if user not in seen and user not in layout.linears:
                seen.add(user)
                open_.append(user)
    return False


def _module(parameter: str) -> str:
    """Name the module of a parameter of the model in its loss as the script's model has it."""
    return parameter.removeprefix(WRAPPED).rpartition(".")[0]


def _module_of(node: Any) -> str:
    """Name the module that a node is of, as ``_module`` does."""
    path = [*node.meta["nn_module_stack"].values()][-1][0]
    return path.removeprefix("L['self'].").removeprefix(WRAPPED)
