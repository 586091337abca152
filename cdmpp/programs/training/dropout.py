"""Dropout taken out of a network: random numbers are drawn by no tensor program."""

from __future__ import annotations

from typing import Any

_DEPTH = {"StochasticDepth": "p", "DropPath": "drop_prob"}
"""End of the name of a class that leaves out whole branches -> its probability; of torchvision, of transformers."""


def without_stochastic_depth(model: Any) -> int:
    """Leave no branch of the module out any more, in place; return how many might have been."""
    taken = 0
    for module in model.modules():
        for end, name in _DEPTH.items():
            if type(module).__name__.endswith(end) and getattr(module, name, None):
                setattr(module, name, 0.0)
                taken += 1
    return taken


def without_dropout(exported: Any) -> int:
    """Replace every dropout by its input, that of attention by nothing, in place; return how many there were."""
    import torch

    aten = torch.ops.aten
    plain = {aten.dropout.default, aten.feature_dropout.default, aten.native_dropout.default}
    attention = aten.scaled_dot_product_attention.default
    taken = 0
    for node in list(exported.graph.nodes):
        if node.target in plain:
            taken += bool(node.args[1]) and bool(node.args[2])
            replaced = [user for user in node.users if user.target.__name__ == "getitem"]
            for one in [node] if node.target is not aten.native_dropout.default else replaced:
                one.replace_all_uses_with(node.args[0])
            for one in [*replaced, node]:  # what draws numbers is no dead code to torch
                exported.graph.erase_node(one)
        elif node.target is attention and len(node.args) > 4 and node.args[4]:
            node.args = (*node.args[:4], 0.0, *node.args[5:])
            taken += 1
        elif node.target is attention and node.kwargs.get("dropout_p"):
            node.kwargs = {**node.kwargs, "dropout_p": 0.0}
            taken += 1
    exported.graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return taken
