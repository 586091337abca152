"""A graph whose sequence is divided: each node with the tokens of one rank, found by a run on a prime of tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport, LocalGraph, title_of
from cdmpp.operators.aten import ATTENTION_CALL, name_of
from cdmpp.operators.aten_layout import arguments_of, tensors_in
from cdmpp.operators.attention_rules import attention_call
from cdmpp.operators.ring_attention import RING, Ring, RingCalls

_LONG = 1_000_003
"""A prime: an axis that is so long, or longer, is that of the sequence, and no other."""
_MOST, _TRIED = 1 << 40, 6
_ALONG = (
    *("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "flip", "roll", "sort", "topk"),
    *("layer_norm", "native_layer_norm", "rms_norm", "cat", "stack", "logsumexp"),
)
"""Operators with an axis along which they read all elements for each of theirs."""
_SHAPED = ("view", "reshape", "_unsafe_view", "unflatten")
"""Operators that give all elements another shape, in the same order."""
_SLIDING = ("conv", "convolution", "max_pool", "avg_pool", "unfold", "fft", "group_norm", "instance_norm")
"""Beginnings of names of those that read across axes behind the first two."""


def sequences(exported: Any) -> list[tuple[Any, int]]:
    """List calls of attention whose queries and keys are as many, and their number."""
    found = []
    for node in exported.graph.nodes:
        if node.op == "call_function" and name_of(node) == ATTENTION_CALL:
            given = arguments_of(node)
            rows, cols = (int(given[name].shape[-2]) for name in ("query", "key"))
            found += [(node, rows)] if rows == cols else []
    return found


class DividedSequence:
    """It writes the graph of the rank that has the last part of the sequence."""

    def __init__(self, exported: Any, tokens: int, ring: Ring) -> None:
        """Begin.

        Args:
            exported: the step, whose inputs have the sequence as their second axis.
            tokens: in the sequence; ``ring.ranks`` divide them.
            ring: how.
        """
        self.exported, self.tokens, self.ring, self.local = exported, tokens, ring, LocalGraph(exported)
        self.long = dict[Any, Any]()
        """Node of the whole graph -> what it has of a sequence of ``_LONG`` tokens."""

    def run(self) -> DividedExport:
        """Return the graph; ``CdmppError``: an operator that cannot run on a part of a sequence, by name."""
        import torch

        inputs = set(self.exported.graph_signature.user_inputs)
        for node in self.exported.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and isinstance(value, torch.Tensor):
                shape = list(map(int, value.shape))
                is_divided = node.name in inputs and len(shape) > 1 and shape[1] == self.tokens
                long = [shape[0], _LONG, *shape[2:]] if is_divided else shape
                own = [shape[0], self.tokens // self.ring.ranks, *shape[2:]] if is_divided else None
                new = self.local.placeholder(node, own)
                whole = torch.empty(long, dtype=value.dtype, device="meta") if is_divided else new.meta["val"]
                self.long[node] = whole
            elif node.op in ("placeholder", "get_attr", "output"):
                new = self.local.placeholder(node) if node.op == "placeholder" else self.local.copy(node)
                self.long[node] = new.meta.get("val")
            else:
                self.call(node)
        return self.local.done()

    def call(self, node: Any) -> None:
        """Add an operator on the tokens of one rank."""
        from torch.fx import map_arg

        is_divided = name_of(node) == ATTENTION_CALL and self.is_divided(node)
        given = map_arg((node.args, dict(node.kwargs)), self.long.__getitem__)
        failure: Exception | None = None
        for chosen in self.choices(node):
            args, kwargs = self.scaled(given, chosen, _LONG)
            try:
                found = self.local.runs.run(node.target, args, kwargs)
            except Exception as error:  # other numbers are those of the sequence
                failure = failure or error
                continue
            if self.is_as_expected(node, found):
                break
        else:
            raise self.refused(node, "depends on the length of the sequence") from failure
        self.long[node] = found
        learned = [one for one in node.all_input_nodes if self.local.nodes[one] in self.local.learns]
        if learned and not is_divided:
            self.check(node, learned)
        own = self.local.arguments(node)
        new = self.local.copy(node, *self.scaled(own, chosen, self.tokens // self.ring.ranks))
        if is_divided:
            self.attention(node, new)

    def choices(self, node: Any) -> Iterator[frozenset[int]]:
        """Yield which numbers among the arguments may be those of the sequence: all that are multiples, then fewer."""
        count = 0

        def counted(value: Any) -> Any:
            nonlocal count
            count += self.is_multiple(value)
            return value

        self.mapped((node.args, dict(node.kwargs)), counted)
        sizes = range(count, -1, -1) if count <= _TRIED else (count, 0)
        for size in sizes:
            yield from map(frozenset, itertools.combinations(range(count), size))

    def scaled(self, given: Any, chosen: frozenset[int], tokens: int) -> Any:
        """Return arguments with the chosen numbers as of a sequence of so many tokens."""
        if not chosen:
            return given
        count = itertools.count()

        def made(value: Any) -> Any:
            if not self.is_multiple(value):
                return value
            return value // self.tokens * tokens if next(count) in chosen else value

        return self.mapped(given, made)

    @staticmethod
    def mapped(given: Any, function: Any) -> Any:
        """Apply a function to all that is no list in arguments, in order."""
        from torch.fx.node import map_aggregate

        return map_aggregate(given, function)

    def is_multiple(self, value: Any) -> bool:
        """Return True for a number that may be that of the tokens of some examples."""
        return type(value) is int and 0 < value < _MOST and value % self.tokens == 0

    def is_as_expected(self, node: Any, found: Any) -> bool:
        """Return True if a value has the axes of the node's, each as long or as long as a sequence."""
        if name_of(node) in _SHAPED and not _is_in_order(self.long[node.args[0]], found):
            return False  # numbers of another axis were taken for those of the sequence
        pairs = [*zip(tensors_in(found), tensors_in(node.meta.get("val")), strict=False)]
        return all(
            one.dim() == other.dim() and all(a == b or _is_long(a) for a, b in zip(one.shape, other.shape, strict=True))
            for one, other in pairs
        )

    def check(self, node: Any, learned: list[Any]) -> None:
        """Raise ``CdmppError`` where one token's result depends on those of other ranks."""
        value = tensors_in(self.long[node])
        if not value or value[0].numel() == 1:  # the loss, of the tokens of a rank
            return
        many = _axes(value[0])
        given = [tensors_in(self.long[one])[0] for one in learned]
        most = max(map(_axes, given))
        name = name_of(node)
        if many > 1:
            raise self.refused(
                node, "makes a score of every pair of tokens: its attention is no scaled_dot_product_attention, which "
                "PyTorch divides (attn_implementation='sdpa' of transformers)",
            )  # fmt: skip
        if many < most or any(_is_long(given[0].shape[axis]) for axis in _axes_of(node, name, given[0])):
            raise self.refused(node, "reads all tokens of a sequence for each of its results")

    def is_divided(self, node: Any) -> bool:
        """Return True for attention over the sequence; ``CdmppError`` where PyTorch has no ring for it."""
        given, nodes = arguments_of(node), _arguments(node)
        long = [_is_long(self.long[nodes[name]].shape[-2]) for name in ("query", "key")]
        if not any(long):
            return False
        if not all(long):
            raise self.refused(node, "attends to another sequence than its own")
        if given.get("attn_mask") is not None:
            raise self.refused(
                node, "has a mask that is a tensor, which context_parallel of PyTorch refuses (attn_bias is not "
                "supported yet): take is_causal=True, or no mask",
            )  # fmt: skip
        if self.ring.is_balanced and not given.get("is_causal"):
            raise self.refused(
                node, "has no causal mask, and PyTorch balances the load of causal ones alone: load_balance: false"
            )
        return True

    def attention(self, node: Any, new: Any) -> None:
        """Note what the ranks exchange in a call of attention."""
        title, key = title_of(node), self.local.nodes[_arguments(node)["key"]]
        new.meta[RING] = self.ring
        for when, sent, total in _passes(new, new in self.local.learns):
            for one in sent:
                self.local.exchange(
                    one.kind, new, when, one.bytes, f"{title} {one.name}", int(one.kind == "send_recv"), of=key,
                    at=(one.after - total, one.before - total if one.before >= 0 else 0),
                    is_ring=one.kind == "send_recv",
                )  # fmt: skip

    def refused(self, node: Any, why: str) -> CdmppError:
        """Return the error of an operator that cannot be divided."""
        return CdmppError(f"context={self.ring.ranks}: {name_of(node)} ({node.name}, {title_of(node)}) {why}")


def _is_in_order(before: Any, after: Any) -> bool:
    """Return True if a view keeps the elements of each token behind it, or merges them into the axis of the tokens."""
    (many, own), (later, own_later) = map(_behind, (before, after))
    if own == own_later:
        return True
    merged, split = (many * own, later * own_later) if own_later < own else (later * own_later, many * own)
    return split >= merged


def _behind(value: Any) -> tuple[int, int]:
    """Return how many sequences long the last axis of tokens is, and the elements behind it; zeros without one."""
    axes = [axis for axis, size in enumerate(value.shape) if _is_long(size)]
    if not axes:
        return 0, 0
    return int(value.shape[axes[-1]]) // _LONG, math.prod(map(int, value.shape[axes[-1] + 1 :]))


def _arguments(node: Any) -> dict[str, Any]:
    """Return what a node is given by the names of its schema."""
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _passes(new: Any, learns: bool) -> Iterator[tuple[str, Any, int]]:
    """When, what is sent and how many operators run, of the passes of a call of attention."""
    found = RingCalls(attention_call(new), new.meta[RING])
    yield "inside", found.sent, len(found.forward)
    if learns:
        yield "inside gradients", found.sent_backward, len(found.backward)


def _is_long(size: Any) -> bool:
    return int(size) >= _LONG // 2


def _axes(value: Any) -> int:
    """Count the axes of a value that have the tokens of a sequence."""
    return sum(map(_is_long, value.shape))


def _axes_of(node: Any, name: str, value: Any) -> list[int]:
    """Axes of the first thing that a node reads along which it needs all elements for each of its results."""
    if name.startswith(_SLIDING):
        return list(range(2, value.dim()))
    if name not in _ALONG:
        return []
    given = arguments_of(node)
    if "normalized_shape" in given:
        return list(range(value.dim() - len(given["normalized_shape"]), value.dim()))
    dim = given.get("dim", -1 if name in ("sort", "topk", "softmax", "log_softmax") else 0)
    dims = dim if isinstance(dim, tuple | list) else [dim if dim is not None else 0]
    return [one % value.dim() for one in dims] if name != "stack" else []
