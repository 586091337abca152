"""The place in a model that an operator of its joint graph comes from, whose export forgets the modules."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.programs.refusal import place_in_model

Places = Mapping[str, Sequence[str]]
"""Root of an operator's name -> the places where the exported forward pass runs it, in order."""


def forward_places(graph: Any) -> Places:
    """Return places of the operators in the graph of an exported forward pass."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and (place := place_in_model(node)):
            found.setdefault(_root(node), []).append(place)
    return found


def place_in_step(node: Any, known: Places, names: Sequence[str]) -> str:
    """Return the place of a joint graph's node: where the forward pass runs the like, else its parameter.

    Args:
        node: of the joint graph.
        known: ``forward_places`` of the exported forward pass.
        names: of the inputs of the joint graph in their order; empty for those that are no parameter.
    """
    if places := known.get(_root(node)):
        alike = [one for one in node.graph.nodes if one.target == node.target]
        if "backward" in str(node.target):  # the backward pass meets them in the reverse order
            alike.reverse()
        return places[alike.index(node)] if len(alike) == len(places) else places[0]
    return _parameter_near(node, names)


def _parameter_near(node: Any, names: Sequence[str]) -> str:
    inputs = [one for one in node.graph.nodes if one.op == "placeholder"]
    named = {one: name for one, name in zip(inputs, names, strict=False) if name}
    near, seen = deque([node]), {node}
    while near:
        one = near.popleft()
        if one in named:
            return f"what is next to the parameter {named[one]}"
        for other in (*one.all_input_nodes, *one.users):
            if other not in seen and other.op != "output":
                seen.add(other)
                near.append(other)
    return ""


def _root(node: Any) -> str:
    """``max_pool2d`` of ``max_pool2d_with_indices_backward.default``."""
    name = getattr(node.target, "__name__", "").split(".")[0].strip("_")
    name = re.sub(r"^native_|_with_indices|_backward|_data$|_forward$", "", name)
    return re.sub(r"^conv(_transpose)?\dd$", "convolution", name)
