"""Context code: the lines of PyTorch by which ranks have parts of each sequence, as ``context_parallel`` has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import title_of
from cdmpp.network.eager.step import export_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.operators.ring_attention import Ring
from cdmpp.plans.strategies.context import Context
from cdmpp.plans.strategies.sequence import DividedSequence, sequences
from cdmpp.programs.training.loss import with_loss

_REFUSED = "--torch: no script can be written of context parallelism"
_HINT = "give a file that ends in .toml, for torchtitan"


@dataclass(frozen=True)
class ContextCode:
    """Lines of a script whose ranks along ``cp`` have parts of ``inputs`` and ``target``."""

    settings: tuple[str, ...]
    """They stand before all steps."""
    around: str
    """The passes stand in this ``with``."""


def context_code(workload: Workload, strategy: Context, ranks: int) -> ContextCode:
    """Write the lines; ``CdmppError`` where a rank would count positions in its own part, or shift targets there."""
    strategy.check_written()
    exported = export_step(workload).exported
    found = sequences(exported)
    strategy.divide(exported, ranks)  # it refuses what cannot be divided
    tokens = max(count for _, count in found)
    if workload.loss == "model":
        raise CdmppError(f"{_REFUSED} with loss model, which shifts targets within the part of a rank: {_HINT}")
    if (name := _positions(exported, tokens)) is not None:
        raise CdmppError(
            f"{_REFUSED}: {name} makes values for each place of a sequence from none of the inputs, and a rank would "
            f"count its places from zero; {_HINT}, or make positions an input"
        )
    network = read_torch(workload, needs_values=False)
    _, (*_, target) = with_loss(network.model, network.example, workload.loss)
    has = [one.dim() > 1 and one.shape[1] == tokens for one in network.example]
    if not any(has) or target.dim() < 2 or target.shape[1] != tokens:
        raise CdmppError(f"{_REFUSED}: inputs and targets need the {tokens} tokens of a sequence as their second axis")
    names = [*(f"inputs[{place}]" for place, one in enumerate(has) if one), "target"]
    buffers = f"buffers=[{', '.join(names)}], buffer_seq_dims={[1] * len(names)}"
    rotates = {"ring": "alltoall", "all_gather": "allgather"}[strategy.method]
    settings = [f'set_rotate_method("{rotates}")']
    if strategy.load_balance is False:
        settings += ["_cp_options.enable_load_balance = False"]
    around = f'with context_parallel(mesh["cp"], {buffers}, no_restore_buffers={{{", ".join(names)}}}):'
    return ContextCode(tuple(settings), around)


def _positions(exported: Any, tokens: int) -> str | None:
    """Name the module that makes values for each place of a sequence from none of the inputs; None where none does."""
    import torch

    sequence = DividedSequence(exported, tokens, Ring(1, False, False))
    sequence.run()
    read, inputs = set[Any](), set(exported.graph_signature.user_inputs)
    for node, value in sequence.long.items():
        if node.name in inputs or any(one in read for one in node.all_input_nodes):
            read.add(node)
        elif node.op == "call_function" and isinstance(value, torch.Tensor) and max(value.shape, default=0) > 10**6:
            return title_of(node)
    return None
