"""OnnxModule: a torch module that runs the nodes of an ONNX file, each as PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule


class TensorGiven:
    """This class stands for an input that is a tensor."""


class OnnxCall(nn.Module):
    """One node: its rule, with what is known of its inputs; tensors fill the other places."""

    def __init__(self, rule: Rule, node: OnnxNode, given: Sequence[Any], layer: nn.Module | None) -> None:
        super().__init__()
        self.rule, self.node, self.given, self.layer = rule, node, tuple(given), layer

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        """Return the results of the node."""
        left = iter(tensors)
        given = [next(left) if one is TensorGiven else one for one in self.given]
        if self.layer is not None:
            given = [self.layer, given[0], *given[4:]]
        found = self.rule.run(self.node, *given)
        return found if isinstance(found, tuple) else (found,)


class Step(NamedTuple):
    """One call of an ``OnnxModule``."""

    call: str
    """Name of its module."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxModule(nn.Module):
    """It runs node after node; weights and constants of the file are its parameters and buffers."""

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.results = tuple(inputs), tuple[str, ...]()
        self.held: dict[str, str] = {}
        """Name of a value of the file -> that of the parameter or buffer."""
        self.steps: list[Step] = []
        self.nodes = nn.ModuleDict()

    def forward(self, *given: Any) -> Any:
        """Return the result of the graph, or a tuple of them."""
        values = dict(zip(self.inputs, given, strict=True))
        values |= {name: getattr(self, own) for name, own in self.held.items()}
        for step in self.steps:
            found = self.nodes[step.call](*(values[name] for name in step.inputs))
            values.update((name, one) for name, one in zip(step.outputs, found, strict=False) if name)
        results = tuple(values[name] for name in self.results)
        return results[0] if len(results) == 1 else results
