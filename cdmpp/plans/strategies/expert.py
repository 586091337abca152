"""Expert parallelism: each rank has some of the experts of every layer, and a batch of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import RETURNS, ROLE, DividedExport, LocalGraph, bytes_of_value, smallest, title_of
from cdmpp.operators.aten import is_pointwise, name_of
from cdmpp.operators.aten_grouped import GROUPED
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.programs.experts import COUNT_BYTES, IMBALANCE, expert_rows
from cdmpp.steps.strategy import OperatorStrategy

_ROW_BY_ROW = (
    *("chunk", "split", "split_with_sizes", "getitem", "to", "_to_copy", "clone", "contiguous", "detach", "alias"),
    *("dropout", "dropout_", "slice", "_assert_tensor_metadata"),
)
"""Operators that compute a row from that row, next to elementwise ones."""
_VIEWS = ("transpose", "t", "permute", "to", "_to_copy", "contiguous", "clone", "alias", "detach")
"""Operators through which the matrices of experts are read."""


@STRATEGIES.register
@dataclass(frozen=True)
class Expert(OperatorStrategy):
    """Ranks send each token to the ranks that have its experts, and get their results back: all-to-all, twice a pass.

    Before, they tell each other how many tokens will come. All other layers run as in data parallelism: parameters are
    shared along ``ep`` too, but those of experts, of which each rank has and updates its own, averaged over the
    replicas of these. The rank that has the busiest expert counts: with ``moe_imbalance`` it gets more tokens than it
    sends. What arrives is copied into the order of its experts, and back.
    """

    name = "expert"
    title = "expert parallel"
    degrees = ("ep",)

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Write torchtitan's ``ExpertParallel`` on each module of experts: PyTorch itself has none."""
        return (f"for one in experts: parallelize_module(one, {axes or 'mesh'}, ExpertParallel())  # of torchtitan",)

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the fewest experts of a layer, and its name."""
        return smallest((int(node.args[1].meta["val"].shape[0]), title_of(node)) for node in _products(exported))

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: no experts that run together, or as many as do not divide."""
        products = _products(exported)
        if not products:
            raise CdmppError(
                f"expert={ranks}: the network has no experts that run together as grouped products; of transformers "
                "set_experts_implementation('grouped_mm') has them"
            )
        for node in products:
            experts = int(node.args[1].meta["val"].shape[0])
            if experts % ranks:
                raise CdmppError(
                    f"expert={ranks}: {title_of(node)} has {experts} experts: expected a number of ranks that divides "
                    "them evenly, as torchtitan and Megatron do"
                )
        return _Divided(exported, products, ranks).run()


def _products(exported: Any) -> list[Any]:
    """Nodes that multiply rows by the matrix of one of several experts each."""
    return [
        node
        for node in exported.graph.nodes
        if node.op == "call_function" and name_of(node) in GROUPED and node.args[1].meta["val"].dim() == 3
    ]


def _weight(node: Any) -> Any:
    """Return the parameter whose matrices a product reads; ``CdmppError`` where they are computed."""
    found = node.args[1]
    while found.op == "call_function" and name_of(found) in _VIEWS:
        found = found.args[0]
    if found.op != "placeholder":
        raise CdmppError(f"the experts of {title_of(node)} are computed by {found.name}: they cannot be divided")
    return found


class _Divided:
    """It writes the graph of the rank that has the busiest expert."""

    def __init__(self, exported: Any, products: list[Any], ranks: int) -> None:
        self.exported, self.ranks, self.local = exported, ranks, LocalGraph(exported)
        self.products, self.weights = set(products), {_weight(node) for node in products}
        self.sent, self.back = dict[Any, Any](), dict[Any, Any]()
        """Node of the whole graph -> its rows as they arrive at their experts; rows of experts -> as they came back."""
        self.at_experts, self.behind = set[Any](), set[Any]()
        """Nodes of the whole graph whose rows are at the experts; nodes computed row by row of what came back."""

    def run(self) -> DividedExport:
        for node in self.exported.graph.nodes:
            if node in self.weights:
                shape = list(node.meta["val"].shape)
                self.local.placeholder(node, [shape[0] // self.ranks, *shape[1:]], 0)
            elif node.op == "placeholder":
                self.local.placeholder(node)
            elif node in self.products:
                self.product(node)
            elif _is_row_by_row(node) and node.all_input_nodes and self.at_experts.issuperset(node.all_input_nodes):
                self.local.copy(node)
                self.at_experts.add(node)
            else:
                self.whole(node)
        return self.local.done()

    def product(self, node: Any) -> None:
        """Add a product by the experts of one rank, on rows that are sent there if they were not."""
        import torch

        x, experts, imbalance = node.args[0], int(node.args[1].meta["val"].shape[0]), node.meta.get(IMBALANCE, 1.0)
        own, shares = experts // self.ranks, expert_rows(int(x.meta["val"].shape[0]), experts, imbalance)
        if x not in self.at_experts:
            rows = self.ranks * sum(shares[:own]) if imbalance > 1 else sum(shares)
            self.dispatch(node, x, rows, experts)
        before = {one: self.local.nodes[one] for one in node.all_input_nodes}
        if x in self.sent:
            self.local.nodes[x] = self.sent[x]
        for one, new in before.items():
            if tuple(one.meta["val"].shape) == (experts,):  # ends of the rows of each expert
                self.local.nodes[one] = self.local.call(torch.ops.aten.slice.Tensor, (new, 0, 0, own), {}, one)
        made = self.local.copy(node)
        if imbalance > 1:
            rows = int(self.local.nodes[x].meta["val"].shape[0])
            made.meta[IMBALANCE] = max(1.0, self.ranks * shares[0] * own / rows)
        self.local.nodes |= before
        self.at_experts.add(node)

    def dispatch(self, node: Any, x: Any, rows: int, experts: int) -> None:
        """Send rows to their experts, where ``rows`` arrive; ``CdmppError``: they came back from such already."""
        import torch

        if x in self.behind:
            raise CdmppError(
                f"expert={self.ranks}: {title_of(node)} computes something of each row between two products of its "
                f"experts that is not the same for all rows of an expert, such as a bias ({x.name}): it cannot be "
                "divided"
            )
        if x in self.sent:
            return
        old, title = self.local.nodes[x], title_of(node)
        more = rows - int(old.meta["val"].shape[0])
        new = self.local.call(torch.ops.aten.constant_pad_nd.default, (old, [0, 0, 0, more]), {}, node)
        new.meta |= {ROLE: ("dispatch",), RETURNS: new}
        size = bytes_of_value(new.meta["val"])
        self.local.exchange("all_to_all", new, "before", COUNT_BYTES * experts, f"{title} token counts", in_order=True)
        self.local.exchange("all_to_all", new, "before", size, f"{title} dispatch", in_order=True)
        if old in self.local.learns:
            self.local.exchange("all_to_all", new, "after gradient", size, f"{title} gradient of dispatch", of=new)
        self.sent[x] = new

    def whole(self, node: Any) -> None:
        """Add an operator of rows that are back."""
        returned = [one for one in node.all_input_nodes if one in self.at_experts]
        parts = {one: self.local.nodes[one] for one in returned}
        self.local.nodes |= {one: self.combined(one) for one in returned}
        self.local.copy(node)
        self.local.nodes |= parts
        if _is_row_by_row(node) and any(one in self.behind or one in returned for one in node.all_input_nodes):
            self.behind.add(node)

    def combined(self, node: Any) -> Any:
        """Return the new node of the rows of ``node`` that came back from their experts."""
        import torch

        if node not in self.back:
            local, made = self.local, self.local.nodes[node]
            less = int(made.meta["val"].shape[0] - node.meta["val"].shape[0])
            new = local.call(torch.ops.aten.constant_pad_nd.default, (made, [0, 0, 0, -less]), {}, node)
            new.meta |= {ROLE: ("combine",), RETURNS: made}
            size, title = bytes_of_value(made.meta["val"]), title_of(node)
            local.exchange("all_to_all", new, "after", size, f"{title} combine")
            if made in local.learns:
                local.exchange(
                    "all_to_all", new, "before gradient", size, f"{title} gradient of combine", in_order=True
                )
            self.back[node] = new
        return self.back[node]


def _is_row_by_row(node: Any) -> bool:
    """Return True for an operator that computes each row of its result of the same rows of what it reads."""
    if node.op != "call_function" or not (name_of(node) in _ROW_BY_ROW or is_pointwise(node)):
        return False
    rows = {int(one.shape[0]) for one in tensors_in(node.meta.get("val")) if one.dim()}
    return not rows or rows <= {
        int(one.shape[0]) for other in node.all_input_nodes for one in tensors_in(other.meta["val"]) if one.dim()
    }
