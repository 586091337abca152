"""Tensor parallelism: each rank has some columns or rows of every linear layer, as ``parallelize_module`` divides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.plans.strategies.tensor_graph import DividedTensors
from cdmpp.plans.strategies.tensor_layout import FRAMEWORKS, ROW, Layout
from cdmpp.plans.strategies.tensor_roles import layout_of
from cdmpp.plans.strategies.tensor_tokens import APART, EXPERTS, WHOLE, is_of_experts
from cdmpp.platform.limits import check_choice
from cdmpp.steps.strategy import OperatorStrategy


@STRATEGIES.register
@dataclass(frozen=True)
class Tensor(OperatorStrategy):
    """Ranks sum up what layers of rows give, and the gradients of what layers of columns read.

    Roles are found from the graph: what reads whole values is divided by columns, what reads such parts by rows, and
    between them ranks have some heads of attention each. What needs whole values leaves the layers before it whole. As
    PyTorch runs it, each of several layers of columns with the same input exchanges that, and its gradient, by itself.
    Embeddings of words, and the layer that scores them, are divided by words; a cross-entropy of scores runs on parts.
    """

    name = "tensor"
    title = "tensor parallel"
    degrees = ("tp",)
    replicates = False

    framework: str = "torch"
    """Rules of ``parallelize_module`` (``torch``), or of Megatron (``megatron``): it sums up the gradient of an input
    once and while that of weights is made, those of norms once a step, and gathers sequences again in the backward
    pass."""
    sequence_parallel: bool = False
    """True if what lies between layers, norms and sums, is divided along the sequence."""
    vocabulary: bool = True
    """True if embeddings of words, and the layer that scores them, are divided by words."""
    loss_parallel: bool = True
    """True if a cross-entropy of scores that are divided runs on the parts; else these are gathered."""
    shared_inputs: bool = False
    """True if layers of columns with the same input gather it once, and sum up its gradient once."""

    async_tp: bool = False
    """True if sequences are gathered, and sums scattered, piece by piece while the product next to that runs."""

    experts: str = field(default="whole", kw_only=True)
    """How ranks use the experts of a layer that run together as grouped products. ``whole``: each runs all of them on
    all tokens. ``divided``: each has some columns and rows of every expert (Megatron's expert tensor parallelism as
    wide as ``tp``). ``apart``: each has some of the experts, to which tokens are sent (its expert tensor parallelism of
    1); that needs ``sequence_parallel``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("tensor.experts", self.experts, EXPERTS)
        if self.experts == APART and not self.sequence_parallel:
            raise CdmppError(
                "tensor.experts is apart without sequence_parallel, and Megatron sends to experts only the tokens that "
                "a rank has of its own: add sequence_parallel, or take whole or divided"
            )
        if self.async_tp and not self.sequence_parallel:
            raise CdmppError("tensor.async_tp is true without sequence_parallel: there is nothing to gather or scatter")
        check_choice("tensor.framework", self.framework, tuple(FRAMEWORKS))

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the most ranks that have equal parts of everything, and the layer that allows no more."""
        return self.layout(exported).limit()

    def layout(self, exported: Any) -> Layout:
        """Return the roles of all layers of an exported step."""
        multiple = FRAMEWORKS[self.framework].multiple if self.vocabulary else 0
        return layout_of(exported, multiple, self.loss_parallel, self.sequence_parallel, self.experts)

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: no layer to divide, or one that cannot be divided evenly."""
        layout = self.layout(exported)
        if ROW not in (layout.roles.get(one) for one in layout.linears):
            raise CdmppError(f"{self.name}={ranks}: the network has no pair of linear layers that can be divided")
        rules = FRAMEWORKS[self.framework]
        if self.experts != WHOLE and not any(map(is_of_experts, exported.graph.nodes)):
            raise CdmppError(
                f"tensor.experts is {self.experts}, and the network has no experts that run together as grouped "
                f"products: leave it out ({WHOLE})"
            )
        layout.check(ranks, self.name, rules)
        return DividedTensors(layout, ranks, rules, self.shared_inputs, self.overlap, self.async_tp).run()

    def torch_lines(self, axes: str = "", optimizer: str = "") -> tuple[str, ...]:  # noqa: ARG002
        """Say what divides the model; its layers are those of the network, which ``--torch`` reads."""
        return ("# parallelize_module: --torch FILE writes the style of each layer",)
