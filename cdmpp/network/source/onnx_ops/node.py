"""OnnxNode: one node of a graph as its rule reads it, and what refuses a node by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch

from cdmpp.errors import CdmppError

_SAID_ELSEWHERE = frozenset(
    ("kernel_shape", "hidden_size", "num_outputs", "seed", "ratio", "momentum", "storage_order", "consumed_inputs")
)
"""Attributes that repeat what weights and results say, or that an inference does not read."""


@dataclass(frozen=True)
class OnnxNode:
    """This is one node: its operator, its attributes with their defaults, and which results of it are read."""

    op: str
    name: str
    attributes: Mapping[str, Any]
    opset: int
    outputs: tuple[bool, ...]
    weights: frozenset[int] = frozenset()
    """Places of the inputs that are weights of the file."""
    own: frozenset[str] = frozenset()
    """Names of the attributes that the file gives another value than their default."""
    packed: Mapping[int, Any] = field(default_factory=dict)
    """Place of an input of few bits -> its ``Packed``."""
    packed_result: Any = None
    """The ``Packed`` of the first result; None where it has none."""
    read: set[str] = field(default_factory=set)
    """Names of the attributes that a rule has asked for."""

    def __getitem__(self, name: str) -> Any:
        """Return an attribute; None where it has neither a value nor a default."""
        self.read.add(name)
        return self.attributes.get(name)

    def all_read(self) -> None:
        """Refuse a node with an attribute that its rule never asked for: it would be another operator with it."""
        if left := sorted(self.own - self.read - _SAID_ELSEWHERE):
            self.refuse(f"has {left[0]}={self.attributes[left[0]]}, which PyTorch's own operator has not")

    def refuse(self, why: str) -> NoReturn:
        """Raise ``CdmppError`` that names the operator and the node."""
        raise CdmppError(
            f"the ONNX operator {self.op} (node {self.name}) {why}: replace it before exporting, or predict the "
            "network without the part that it belongs to"
        )

    def only(self, **allowed: Any) -> None:
        """Refuse attributes that have another value than the allowed one."""
        for name, value in allowed.items():
            if self[name] not in (value, None):
                self.refuse(f"has {name}={self[name]}, and PyTorch's own operator only {value}")

    def one_result(self) -> None:
        """Refuse a node of which more is read than its first result."""
        if any(self.outputs[1:]):
            self.refuse("is read for more than its first result, which PyTorch's own operator does not give")

    def whole(self, value: Any, what: str) -> list[int]:
        """Return whole numbers that are known before anything runs; refuse those that a tensor holds."""
        if isinstance(value, torch.Tensor):
            self.refuse(f"takes its {what} from the values of a tensor, which only a run knows")
        return [int(one) for one in value.reshape(-1).tolist()]

    def axes(self, value: Any, what: str = "axes") -> list[int] | None:
        """Return the axes of an input or, of older sets, of an attribute; None without."""
        if value is not None:
            return self.whole(value, what)
        return None if self[what] is None else list(self[what])


class Rule(NamedTuple):
    """This is how PyTorch runs an operator."""

    run: Callable[..., Any]
    """``(node, *inputs)`` -> a tensor, or a tuple of them; an input that is left out is None."""
    known: Sequence[int] = ()
    """Places of inputs that are arrays of NumPy if they are known before anything runs, not tensors."""
    layer: Callable[..., Any] | None = None
    """``(node, *weights)`` -> the module that ``run`` takes in place of the inputs 1, 2 and 3; None: it takes those."""


Rules = dict[str, Rule]
