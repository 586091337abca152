"""The lines of PyTorch that divide a model as a layout of tensor parallelism says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cdmpp.plans.strategies.tensor_layout import COLUMN, GATHER, ROW, Layout
from cdmpp.plans.strategies.tensor_rules import shape_of_node


def styles(layout: Layout) -> dict[str, str]:
    """Return the style of ``torch.distributed.tensor.parallel`` of each module that is divided, by its name.

    Layers of columns each exchange what they read. Modules with parameters that every rank has, and whose gradients
    are parts of a sum, run on sequences.
    """
    named = layout.exported.graph_signature.inputs_to_parameters

    def module(parameter: Any) -> str:
        return str(named[parameter.name].removeprefix("inner.").rpartition(".")[0])

    found = dict[str, str]()
    for node, role in layout.roles.items():
        one, out = layout.linears.get(node), _layout(layout, node)
        if one is None and role in (COLUMN, ROW):
            given = "" if role == COLUMN else f"input_layouts=Replicate(), output_layouts={out}"
            found[module(node.args[0])] = f"{'Colwise' if role == COLUMN else 'Rowwise'}Parallel({given})"
        elif one is not None and role == ROW:
            found[module(one.parameter)] = f"RowwiseParallel(output_layouts={out})"
        elif one is not None:
            read = _layout(layout, one.x) if layout.changes.get((node, one.x)) == GATHER else "Replicate()"
            more = ", output_layouts=Replicate()" if node in layout.gathered else ""
            shard = layout.at[node]
            is_scores = shard is not None and shard.multiple
            more = ", output_layouts=Shard(-1), use_local_output=False" if is_scores else more
            found[module(one.parameter)] = f"ColwiseParallel(input_layouts={read}{more})"
    for node in layout.sliced:
        given = f"output_layouts=Replicate(), desired_output_layouts={_layout(layout, node)}"
        found[module(node.args[0])] = f"PrepareModuleOutput({given})"
    found |= {module(one): "SequenceParallel(use_local_output=True)" for one in layout.partial}
    return found


def lines(made: Mapping[str, str]) -> tuple[str, ...]:
    """Write a call of ``parallelize_module`` for a ``model`` and a ``mesh`` with an axis ``tp``.

    Modules of equal blocks, which differ in a number, are named together.
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    alone: dict[str, str] = {}
    for name, style in made.items():
        match = re.search(r"\.(\d+)\.", name)
        if match is None:
            alone[name] = style
        else:
            kinds.setdefault((f"{name[: match.start()]}.{{i}}.{name[match.end() :]}", style), []).append(
                int(match.group(1))
            )
    written = [f"    {name!r}: {style}," for name, style in alone.items()]
    for (name, style), numbers in kinds.items():
        first, last = numbers[0], numbers[-1]
        those = f"range({first}, {last + 1})" if numbers == [*range(first, last + 1)] else repr(tuple(numbers))
        written.append(f'    **{{f"{name}": {style} for i in {those}}},')
    return ('parallelize_module(model, mesh["tp"], {', *written, "})")


def _layout(layout: Layout, node: Any) -> str:
    """How a value lies on the ranks, as PyTorch writes it: along its sequence, or whole."""
    shard = layout.at[node]
    if shard is None or shard.origins:
        return "Replicate()"
    return f"Shard({shard.axis})" if len(shape_of_node(node)) > 2 else "Shard(0)"
