"""Composite operators of an exported graph as the operators that torch's dispatcher makes of them, where that is asked.

``torch.export`` keeps ``einsum`` or ``cosine_similarity`` as one node; a run dispatches products, sums and so on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from cdmpp.programs.patch import patched
from cdmpp.programs.refusal import quiet
from cdmpp.programs.regions import gradients_on

HELD = "cdmpp_held"
"""Key in the ``meta`` of a node: names of those whose results its composite operator holds until it ran."""


def composites_apart(exported: Any, is_known: Callable[[Any], bool]) -> None:
    """Take composite operators apart that are not known, as far as there are any; the graph is changed.

    Args:
        exported: ``torch.export.ExportedProgram``, or what stands for it.
        is_known: of a node: whether it is left as it is.
    """
    mode: Any = None
    for node in [one for one in exported.graph.nodes if is_composite(one)]:
        if not is_known(node):
            mode = mode or _mode_of(exported)
            take_apart(exported, node, partial(_on_cpu, mode), nullcontext)


def _mode_of(exported: Any) -> Any:
    """Return the mode of the tensors of a graph; a new one where they are of the device meta."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in exported.graph.nodes)
    return next((one for one in modes if one is not None), None) or FakeTensorMode(allow_non_fake_inputs=True)


def _on_cpu(mode: Any, node: Any) -> Any:
    """Return a tensor without values on a CPU: what runs under autocast of a GPU that is not there has its device."""
    import torch

    value = node.meta["val"]
    if value.device.type == "cpu":
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def is_composite(node: Any) -> bool:
    """Return True if torch's dispatcher makes other operators of the one of a node."""
    import torch

    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    )


def take_apart(
    exported: Any, node: Any, value: Callable[[Any], Any], context: Callable[[], AbstractContextManager[Any]]
) -> Any:
    """Put the operators of a composite node in its place.

    Args:
        exported: ``torch.export.ExportedProgram``, or what stands for it.
        node: of its graph, with a composite operator.
        value: gives a node's tensor without values.
        context: makes that in which torch runs the operator, each time.

    Returns:
        The node, or the nodes, of its results; None where its operators cannot be had, and the node stays. What the
        composite operator holds in variables of its own while it runs is noted (``HELD``).
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    if len(given) < len(node.all_input_nodes) or not given:
        return None

    def run(*tensors: Any) -> Any:
        values = dict(zip(given, tensors, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with context():
            return node.target.decompose(*args, **kwargs)

    examples = [value(one) for one in given]  # without a history, of which autograd would make copies
    grad = torch.enable_grad() if gradients_on(node) else torch.no_grad()
    try:
        with quiet(), grad, patched(examples[0].fake_mode, "allow_non_fake_inputs", True):
            traced = make_fx(run)(*examples)
            held = _held(run, examples, traced)
    except Exception:
        return None  # whoever reads the node refuses it by its name
    return _put_in(exported, node, traced, given, held)


def _held(run: Callable[..., Any], examples: list[Any], traced: Any) -> dict[Any, list[Any]]:
    """Return what a composite operator holds, read or not: node of ``traced`` -> nodes that are held until it ran.

    It runs for another time: a storage that is there when an operator begins is in a variable, or read by it. Whoever
    calls it holds what it is given until it is done. ``RuntimeError``: it runs other operators this time.
    """
    import torch
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakIdKeyDictionary

    targets, ends, alive = list[Any](), dict[int, int](), WeakIdKeyDictionary()
    known = {one.untyped_storage()._cdata for one in examples}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace != "aten" or func.is_view:
                return func(*args, **(kwargs or {}))
            place = len(targets)
            targets.append(func)
            ends.update((maker, place) for maker in alive.values())
            found = func(*args, **(kwargs or {}))
            for one in _pytree.tree_leaves(found):
                if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in known:
                    alive[one.untyped_storage()] = place  # or writes into it
            return found

    with Watch():
        run(*examples)
    calls = [one for one in traced.graph.nodes if one.op == "call_function"]
    nodes = [one for one in calls if getattr(one.target, "namespace", "") == "aten" and not one.target.is_view]
    if [one.target for one in nodes] != targets:
        raise RuntimeError("it runs other operators when it runs again")
    given = [one for one in traced.graph.nodes if one.op == "placeholder"]
    held = dict[Any, list[Any]]({nodes[-1]: given} if nodes else {})
    for maker, last in ends.items():
        held.setdefault(nodes[last], []).append(nodes[maker])
    return held


def _put_in(exported: Any, node: Any, traced: Any, given: list[Any], held: dict[Any, list[Any]]) -> Any:
    import torch

    graph, inputs, new = exported.graph, iter(given), dict[Any, Any]()
    for one in traced.graph.nodes:
        if one.op == "placeholder":
            new[one] = next(inputs)
        elif one.op == "output":
            results = torch.fx.map_arg(one.args[0], new.__getitem__)
            _replace(node, results)
        else:
            with graph.inserting_before(node):
                if one.op == "get_attr":
                    name = f"{node.name}_{one.target}"
                    setattr(exported.graph_module, name, getattr(traced, one.target))
                    new[one] = graph.create_node("get_attr", name)
                else:
                    new[one] = graph.node_copy(one, new.__getitem__)
            value = getattr(traced, one.target) if one.op == "get_attr" else one.meta.get("val")
            new[one].meta = {**node.meta, "val": value, HELD: tuple(new[other].name for other in held.get(one, ()))}
    graph.erase_node(node)
    return results


def _replace(node: Any, results: Any) -> None:
    """Let who reads a node read its results."""
    if not isinstance(results, tuple | list):
        node.replace_all_uses_with(results)
        return
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])
            user.graph.erase_node(user)
