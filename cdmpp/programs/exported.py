"""Modules as graphs of ``torch.export``, with what a graph by itself does not say."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from cdmpp.errors import CdmppError, UsageError
from cdmpp.programs.as_eager import Noted, as_eager
from cdmpp.programs.caches import register_caches
from cdmpp.programs.casts import with_casts
from cdmpp.programs.experts import IMBALANCE
from cdmpp.programs.refusal import export_refusal, quiet
from cdmpp.programs.regions import FLAGS, inlined
from cdmpp.programs.watch import watched
from cdmpp.programs.wrappers import check_calls, check_wrappers


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Look for no cycles: exporters make a million objects and hardly one, and looking takes as long as the rest."""
    if enabled := gc.isenabled():
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_collector()
def export(
    model: Any,
    inputs: tuple[Any, ...],
    eager: bool = False,
    trains: bool = False,
    kind: str = "",
    imbalance: float = 1.0,
    dynamic: Any = None,
    boxes: int | None = None,
) -> Any:
    """Export a module by ``torch.export``; ``CdmppError`` has the place that is not traced, or what no graph can tell.

    Args:
        model: a torch module.
        inputs: ``model(*inputs)`` runs.
        eager: with ``as_eager``.
        trains: with gradients on, as a training step has them: what ``regions`` says of its nodes is there.
        kind: of the device whose rules regions of autocast follow, ``cpu`` or ``gpu``; empty: they are refused.
        imbalance: tokens of the busiest expert over the mean, of what is eager.
        boxes: elements that each selection by value keeps, of what is eager; None: such are refused.
        dynamic: ``dynamic_shapes`` of ``torch.export``: sizes of inputs that stay open; None: none do. They leave
            casts of autocast to ``with_casts``, where sizes are known.
    """
    import torch
    import torch.export._trace  # here: what it imports cannot be imported under a mode

    check_wrappers(model, trains)
    run: Any = as_eager(imbalance, boxes, kind) if eager else contextlib.nullcontext(Noted({}, set()))
    with quiet(), run as noted:
        register_caches()  # decoders return those of keys and values
        try:
            with watched(trains, kind or None) as told:
                exported = torch.export.export(model, inputs, dynamic_shapes=dynamic)
            inlined(exported)
            check_calls(exported)
            if kind and dynamic is None:
                with_casts(exported, kind)
        except CdmppError:
            raise
        except Exception as error:
            raise export_refusal(error, type(getattr(model, "inner", model)).__name__) from error
    exported.graph_module.meta[FLAGS] = (*told, *noted.told)
    for node in exported.graph.nodes:
        if "grouped_mm" in str(node.target):
            node.meta[IMBALANCE] = imbalance
            noted.decided.add("imbalance")
    if imbalance > 1 and "imbalance" not in noted.decided:
        raise UsageError(
            f"moe_imbalance is {imbalance:g}: the network has no mixture of experts that it tells: leave it out"
        )
    if boxes is not None and "boxes" not in noted.decided:
        raise UsageError(f"boxes is {boxes}: the network selects nothing by the values of tensors: leave it out")
    return exported
