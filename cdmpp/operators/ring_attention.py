"""Attention to a sequence that ranks divide -> the operators that one rank runs, as PyTorch's context parallelism does.

Keys and values of all ranks come to each in turn. A step attends to those of one rank, and its result is merged with
what was found before by the log-sum-exp. The backward pass has as many steps, and sends their gradients on.
Source: ``torch/distributed/tensor/experimental/_context_parallel/_attention.py`` of torch 2.13.0, functions
``_templated_ring_attention`` and ``_templated_ring_attention_backward``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_attention import ATTENTION, Chosen
from cdmpp.operators.aten_layout import dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, distinct_elements, moved
from cdmpp.operators.attention import BACKWARD, kind_name
from cdmpp.operators.attention_rules import CPU, MATH, NEWEST, AttentionCall, attention_call, backend_of
from cdmpp.operators.backward import Gradient
from cdmpp.operators.operator import EagerOperator

RING = "cdmpp_ring"
"""Key in the ``meta`` of a node that is attention: its ``Ring``."""
_FLOAT = "float32"
"""Results and gradients are summed in this type."""


class Ring(NamedTuple):
    """So many ranks divide a sequence."""

    ranks: int
    gathers: bool
    """True if keys and values of all ranks are gathered at once; False if each rank sends them on, step after step."""
    is_balanced: bool
    """True if each rank has a part of the first and of the second half of the sequence, as far from the middle."""
    repeats: bool = False
    """True if keys and values are repeated for all heads of queries first, so that ranks exchange as many of them."""


class Sent(NamedTuple):
    """The ranks exchange this during one pass."""

    kind: str
    bytes: int
    after: int
    """Place of the operator of the pass that makes it."""
    before: int
    """Place of the operator that waits for it; behind the last one: what reads the result of the pass."""
    name: str


@dataclass(frozen=True)
class RingCalls:
    """These are the operators of one rank that has the last part of the sequence, and what it exchanges.

    That rank attends to all parts: without ``is_balanced`` and with a causal mask it has most work, else all have as
    much.
    """

    call: AttentionCall
    ring: Ring
    backend: str = "flash"

    def __post_init__(self) -> None:
        """Repeat keys and values where they are."""
        if self.repeated:
            import torch

            batch, heads = shape_of(self.call.query)[:2]
            key, value = (
                torch.empty((batch, heads, *shape_of(one)[2:]), dtype=one.dtype, device="meta")
                for one in (self.call.key, self.call.value)
            )
            object.__setattr__(self, "call", self.call._replace(key=key, value=value, grouped=False))

    @cached_property
    def repeated(self) -> bool:
        """Whether there were fewer heads of keys and values, which are repeated for all heads of queries."""
        return self.ring.repeats and shape_of(self.call.key)[1] < shape_of(self.call.query)[1]

    @cached_property
    def forward(self) -> tuple[EagerOperator, ...]:
        """Operators of the forward pass."""
        return tuple(self._forward[0])

    @cached_property
    def backward(self) -> tuple[EagerOperator, ...]:
        """Operators of the backward pass."""
        return tuple(self._backward[0])

    @property
    def sent(self) -> tuple[Sent, ...]:
        """Exchanges of the forward pass."""
        return tuple(self._forward[1])

    @property
    def sent_backward(self) -> tuple[Sent, ...]:
        """Exchanges of the backward pass."""
        return tuple(self._backward[1])

    @cached_property
    def _forward(self) -> tuple[list[EagerOperator], list[Sent]]:
        ops, turns, last = self._laid_out(), _Turns(), self.ring.ranks - 1
        results, rows = self._elements(self.call.query, self.call.value), self._rows
        for step in range(self.ring.ranks):
            turns.taken(len(ops))
            if step < last:
                ops.append(self._copied(self._both))
                if step == 0 or not self.ring.gathers:
                    turns.send(self._keys_sent(len(ops) - 1))
            ops.append(self.step(step))
            if self.is_half:
                ops.append(self._cast(results, self._dtype, _FLOAT))
            if step:  # out - sigmoid(block_lse - lse) * (out - block_out), lse - logsigmoid(lse - block_lse)
                small, large = (EagerOperator.flat("add", count, _FLOAT) for count in (rows, results))
                ops += [small, EagerOperator.flat("relu", rows, _FLOAT), large]
                ops += [EagerOperator.flat("mul", results, _FLOAT), large, small, small, small]
        if self.is_half:
            ops.append(self._cast(results, _FLOAT, self._dtype))
        return ops, turns.sent

    @cached_property
    def _backward(self) -> tuple[list[EagerOperator], list[Sent]]:
        keys, values = (self._count(one) for one in (self.call.key, self.call.value))
        queries, both, ops = self._count(self.call.query), self._both, list[EagerOperator]()
        ops += [moved(Traffic(count, 4 * count), _FLOAT) for count in (queries, keys, values)]  # zeros
        ops += self._contiguous()
        arriving, returning, last = _Turns(), _Turns(), self.ring.ranks - 1
        for step in range(self.ring.ranks):
            arriving.taken(len(ops))
            if step < last:
                ops.append(self._copied(both))
                if step == 0 or not self.ring.gathers:
                    arriving.send(self._keys_sent(len(ops) - 1))
            forward = self.step(step)
            ops.append(EagerOperator(forward.name + BACKWARD, forward.sizes, forward.dtype))
            returning.taken(len(ops))
            for count in (keys, values):
                is_part = step > 0 and self._halves
                ops.append(EagerOperator.flat("add", count / (2 if is_part else 1), _FLOAT))
                ops += [EagerOperator.flat("copy", count, _FLOAT)] if is_part else []
            ops.append(EagerOperator.flat("copy", both, _FLOAT))
            returning.send(Sent("send_recv", 4 * both, len(ops) - 1, -1, "gradients of keys and values"))
            ops.append(EagerOperator.flat("add", queries, _FLOAT))
        if self.is_half:
            ops.append(self._cast(queries, _FLOAT, self._dtype))
        returning.taken(len(ops))
        if self.is_half:
            ops.append(self._cast(both, _FLOAT, self._dtype))
        if self.repeated:  # gradients of the heads that share keys and values are summed
            ops.append(EagerOperator.flat("mean", both, self._dtype))
        return ops, sorted([*arriving.sent, *returning.sent], key=lambda one: one.after)

    def step(self, number: int) -> EagerOperator:
        """Return the attention of one step: to the rank's own keys, then to those of the ranks before it."""
        batch, heads, rows, inner = shape_of(self.call.query)
        own, cols, value = shape_of(self.call.key)[1], shape_of(self.call.key)[2], shape_of(self.call.value)[-1]
        if self.backend == "flash":
            wide = -(-inner // 8) * 8
            inner, value = wide, wide if inner != wide else value
        sizes = {
            "batch": batch, "heads": heads, "rows": rows, "cols": cols // 2 if number and self._halves else cols,
            "inner": inner, "kv_heads": 0 if own == heads else own, "value": 0 if value == inner else value,
            "mask": 0, "causal": int(self.call.causal and not number), "dropout": int(self.call.dropout > 0),
        }  # fmt: skip
        return EagerOperator(kind_name(self.backend), sizes, self._dtype)

    @property
    def held_bytes(self) -> int:
        """Bytes of tensors at most in the forward pass, without queries, keys and values.

        While the second result is merged: keys and values that came and those that are under way, with the copy that is
        sent; both results, their difference and the product of that, and three numbers a row.
        """
        results, item = self._elements(self.call.query, self.call.value), self._item
        merged = 4 * results * 4 + (item * results if self.is_half else 0) + 3 * 4 * self._rows
        return self._keys_held(1) + merged

    @property
    def backward_held_bytes(self) -> int:
        """Bytes of tensors at most in the backward pass, without what it is given.

        While the kernel of the second step runs: gradients of queries; those of keys and values, a copy on its way and
        what comes, all in float32; keys and values; gradients that the kernel made before and makes now.
        """
        queries, both, item = self._count(self.call.query), self._both, self._item
        now = queries + both // (2 if self._halves else 1)
        return 4 * queries + 3 * 4 * both + self._keys_held(2) + item * (queries + both + now)

    def _keys_held(self, least: int) -> int:
        """Bytes of keys and values of other ranks; ``least``: copies where one message is all."""
        each = self._both * self._item
        if self.ring.gathers:
            return (self.ring.ranks + least - 1) * each
        return (3 if self.ring.ranks > 2 else least) * each

    @property
    def _item(self) -> int:
        return int(self.call.key.dtype.itemsize)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """Bytes that are there while each operator of the forward pass runs, beside what it and the one before write.

        They are known at the moment with most, which is the product in which the second result is merged.
        """
        results = self._elements(self.call.query, self.call.value)
        wanted = EagerOperator.flat("mul", results, _FLOAT)
        place = self.forward.index(wanted)
        return tuple(max(0, self.held_bytes - 8 * results) if one == place else 0 for one in range(len(self.forward)))

    @cached_property
    def beside_backward(self) -> tuple[int, ...]:
        """Return the same of the backward pass, at the kernel of its second step."""
        kernels = [place for place, one in enumerate(self.backward) if one.name.endswith(BACKWARD)]
        place, queries = kernels[1], self._count(self.call.query)
        before = self._both * self._item if self.ring.ranks > 2 else 4 * queries
        made = self._item * (queries + self._both // (2 if self._halves else 1))
        held = max(0, self.backward_held_bytes - before - made)
        return tuple(held if one == place else 0 for one in range(len(self.backward)))

    @property
    def is_half(self) -> bool:
        """Return True if results have to be cast to be merged."""
        return self._dtype != _FLOAT

    @property
    def _halves(self) -> bool:
        """True if later steps attend to the first half of the keys of a rank."""
        return self.call.causal and self.ring.is_balanced

    @property
    def _dtype(self) -> str:
        return dtype_of(self.call.query)

    @property
    def _rows(self) -> int:
        batch, heads, rows, _ = shape_of(self.call.query)
        return batch * heads * rows

    def _elements(self, query: Any, value: Any) -> int:
        return self._rows * shape_of(value)[-1]

    @staticmethod
    def _count(one: Any) -> int:
        return int(one.numel())

    @property
    def _both(self) -> int:
        return self._count(self.call.key) + self._count(self.call.value)

    def _keys_sent(self, after: int) -> Sent:
        size = self._both * self.call.key.dtype.itemsize
        if self.ring.gathers:
            return Sent("all_gather", self.ring.ranks * size, after, -1, "keys and values")
        return Sent("send_recv", size, after, -1, "keys and values")

    def _laid_out(self) -> list[EagerOperator]:
        """Copies of keys and values in the forward pass: for all heads, or of those that are not contiguous."""
        if not self.repeated:
            return self._contiguous()
        return [self._copied(self._count(one)) for one in (self.call.key, self.call.value)]

    def _contiguous(self) -> list[EagerOperator]:
        return [
            self._copied(distinct_elements(one)) for one in (self.call.key, self.call.value) if not one.is_contiguous()
        ]

    def _copied(self, elements: int) -> EagerOperator:
        return EagerOperator.flat("copy", elements, self._dtype)

    @staticmethod
    def _cast(elements: int, before: str, after: str) -> EagerOperator:
        return EagerOperator.flat("copy", elements, after, reads=(before,))


class _Turns:
    """It notes each message that was sent, and the operator before which it is taken."""

    def __init__(self) -> None:
        self.sent = list[Sent]()

    def send(self, one: Sent) -> None:
        self.sent.append(one)

    def taken(self, place: int) -> None:
        """Let what is under way be awaited by the operator at ``place``."""
        self.sent = [one._replace(before=place) if one.before < 0 else one for one in self.sent]


def ring_of(
    node: Any,
) -> tuple[tuple[EagerOperator, ...], tuple[tuple[Gradient, ...] | None, ...], frozenset[int], tuple[int, ...]]:
    """Return the calls of a node with a ``Ring``, their gradients, places without one, and bytes beside each call.

    The gradients of all are those of the last call, but for the last one, which is that of the first: in between,
    nothing is kept.

    ``UnsupportedProgramError``: no fused kernel runs it, so that PyTorch has no ring for it.
    """
    found = RingCalls(attention_call(node), node.meta[RING], _backend(node))
    ops = found.forward
    gradients = [
        Gradient(one, "", held_bytes=held) for one, held in zip(found.backward, found.beside_backward, strict=True)
    ]
    made: list[tuple[Gradient, ...] | None] = [None] * len(ops)
    made[-1] = (*gradients[:-2], gradients[-2]._replace(of="inputs"))
    made[0] = (gradients[-1]._replace(of="inputs"),)
    return ops, tuple(made), frozenset(range(1, len(ops) - 1)), found.beside


def _backend(node: Any) -> str:
    chosen = node.meta.get(ATTENTION) or Chosen(backend_of(attention_call(node)), NEWEST)
    if chosen.backend == MATH or chosen.place == CPU:
        where = "a CPU" if chosen.place == CPU else chosen.place
        how = "products of whole sequences (math)" if chosen.backend == MATH else "a CPU's kernel"
        raise UnsupportedProgramError(
            f"attention of {where} runs by {how}, and context parallelism of PyTorch divides only flash, efficient and "
            "cuDNN attention of GPUs: take a type of 16 bits, as many heads of keys as of queries, or another device"
        )
    return chosen.backend
