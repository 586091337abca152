"""Context parallelism: each rank has a part of every sequence, as ``context_parallel`` of PyTorch divides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport, smallest, title_of
from cdmpp.operators.aten_layout import arguments_of
from cdmpp.operators.ring_attention import Ring
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.plans.strategies.sequence import DividedSequence, sequences
from cdmpp.platform.limits import check_choice
from cdmpp.steps.strategy import OperatorStrategy

METHODS = ("ring", "all_gather")


@STRATEGIES.register
@dataclass(frozen=True)
class Context(OperatorStrategy):
    """Ranks have some tokens of each sequence, and attend to the keys and values of all others in turn.

    All ranks hold all parameters, whose gradients are averaged along ``cp`` too. The rank with the last tokens counts,
    which without ``load_balance`` has most work under a causal mask. Gradients of keys and values go round in float32,
    whatever the method.
    """

    name = "context"
    title = "context parallel"
    degrees = ("cp",)

    method: str = "all_gather"
    """``ring``: each rank sends keys and values on, step after step. ``all_gather``, PyTorch's default: they are
    gathered while the rank attends to its own. ``set_rotate_method`` chooses."""
    load_balance: bool | None = None
    """True if each rank has tokens of the beginning and of the end, so that causal masks leave all as much to do.
    None: where all attention is causal, as PyTorch has it."""
    repeat_heads: bool = False
    """True if the model repeats keys and values for all heads of queries before attention, as torchtitan's Llama does:
    ranks exchange as many heads of them. False: as many as the network has, by ``enable_gqa``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("context.method", self.method, METHODS)

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return half of the tokens of the shortest sequence, and the attention that has it."""
        return smallest((max(1, tokens // 2), title_of(node)) for node, tokens in sequences(exported))

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: no attention, or a sequence that cannot be divided so."""
        found = sequences(exported)
        if not found:
            raise CdmppError(
                f"context={ranks}: the network has no attention over one sequence by scaled_dot_product_attention"
            )
        causal = [bool(arguments_of(node).get("is_causal")) for node, _ in found]
        balances = all(causal) if self.load_balance is None else self.load_balance
        tokens = max(count for _, count in found)
        for node, count in found:
            if count != tokens:
                raise CdmppError(
                    f"context={ranks}: {title_of(node)} attends to {count} tokens, and other layers to {tokens}: "
                    "sequences of one length can be divided"
                )
        parts = 2 * ranks if balances else ranks
        if tokens % parts:
            why = ", two for each rank, which balance the load of causal masks" if balances else ""
            raise CdmppError(
                f"context={ranks}: a sequence of {tokens} tokens does not divide into {parts} equal parts{why}"
            )
        return DividedSequence(
            exported, tokens, Ring(ranks, self.method == "all_gather", balances, self.repeat_heads)
        ).run()

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        if setting == "method":
            return "keys and values are gathered" if self.method == "all_gather" else "keys and values go round"
        if setting == "load_balance":
            return "sequences are divided evenly by work" if self.load_balance else "sequences are divided as they are"
        if setting == "repeat_heads":
            return "keys and values are repeated for all heads" if self.repeat_heads else "heads share keys and values"
        return super().describe(setting)

    def check_written(self) -> None:
        """Raise ``CdmppError`` for a setting that PyTorch has not."""
        if self.repeat_heads:
            raise CdmppError("context.repeat_heads is what a model does, and no setting of PyTorch: leave it out")

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Write ``context_parallel`` around a step of the ranks of ``axes``; ``CdmppError``: ``repeat_heads``."""
        self.check_written()
        rotates = {"ring": "alltoall", "all_gather": "allgather"}[self.method]
        balance = () if self.load_balance is not False else (
            "torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance = False",
        )  # fmt: skip
        return (
            f'set_rotate_method("{rotates}")',
            *balance,
            f"with context_parallel({axes or 'mesh'}, buffers=[inputs, targets], buffer_seq_dims=[1, 1]):",
            "    loss_of(model(inputs), targets).backward()",
        )
