"""JointGraph: forward and backward pass of a network as one torch graph of plain tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.refusal import export_refusal, first_line, place_in_model, place_of, quiet
from cdmpp.programs.regions import recomputed_in
from cdmpp.programs.training.decompositions import decompositions
from cdmpp.programs.training.dropout import without_dropout, without_stochastic_depth
from cdmpp.programs.training.places import Places, forward_places, place_in_step
from cdmpp.programs.watch import watched
from cdmpp.programs.wrappers import check_calls, check_wrappers

TORCH = ((2, 13), (2, 14))
"""From the first version of torch, to before the second: the export of a joint graph is a private function of it."""
ROLES = ("parameter", "buffer", "constant", "input", "alias")
"""An alias is a second name of a parameter, which nothing reads."""
WRAPPERS = ("UnderAutocast", "WithLoss", "ModelLoss", "ByName", "FirstOutput")
"""Classes of this package that keep the model of a user as ``inner``."""
RESULTS = ("loss", "gradient", "buffer", "other")


class NoJointGraphError(CdmppError):
    """A training step cannot be made one graph, though its forward pass may be."""


@dataclass(frozen=True)
class Value:
    """This is an input or a result of a joint graph."""

    role: str
    """One of ``ROLES`` for an input, of ``RESULTS`` for a result."""
    name: str
    """Name of the parameter or buffer, as the model calls it; a gradient has that of its parameter."""


@dataclass(frozen=True)
class JointGraph:
    """Loss, gradients and new buffers are a function of parameters, buffers and inputs."""

    module: Any
    """``torch.fx.GraphModule`` of core operators; takes ``tensors``, returns a tuple as ``results`` say."""
    tensors: tuple[Any, ...]
    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    dropouts: int
    """Number of dropouts that were taken out."""
    unused: tuple[str, ...]
    """Trainable parameters that the loss does not depend on: they have no gradient and are not updated."""
    places: Places
    """``places.forward_places`` of the forward pass."""

    def place_of(self, operator: str) -> str:
        """Return where the model first runs an operator of that name, such as ``topk.default``; empty if nowhere."""
        names = [value.name if value.role == "parameter" else "" for value in self.inputs]
        for node in self.module.graph.nodes:
            if getattr(node.target, "__name__", "") == operator:
                return place_in_step(node, self.places, names)
        return ""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Number each parameter with a gradient among the inputs, and its gradient among the results."""
        where = {value.name: i for i, value in enumerate(self.inputs) if value.role == "parameter"}
        return tuple((where[value.name], i) for i, value in enumerate(self.results) if value.role == "gradient")


def joint_graph(model: Any, arguments: tuple[Any, ...]) -> JointGraph:
    """Export the joint graph of a module in training mode that returns ``(loss,)``; the module itself stays as it was.

    Raises:
        NoJointGraphError: this version of torch cannot make one, an operator has no gradient that is covered, or the
            model cannot be exported; it says which and where.
        CdmppError: the model recomputes parts of itself, or runs what no graph can tell.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    check_wrappers(model, trains=True)
    model = copy.deepcopy(model)
    depths = without_stochastic_depth(model)
    unused = _freeze_unused(model, arguments)
    # The gradient of fused attention is one operator that no tensor program stands for.
    with quiet(), sdpa_kernel(SDPBackend.MATH):
        try:
            with watched(trains=True):
                exported = torch.export.export(model, arguments, strict=False)
            _check_regions(exported, unwrapped(model))
        except CdmppError:
            raise
        except Exception as error:
            raise NoJointGraphError(str(export_refusal(error, type(model.inner).__name__))) from error
        export_both = _exporter()  # by now the model is one that a step can be made of, by whatever way
        dropouts, places = depths + without_dropout(exported), forward_places(exported.graph)
        aliases = _without_aliases(exported)
        try:
            joint = export_both(exported, joint_loss_index=0)
        except Exception as error:
            raise NoJointGraphError(
                f"torch cannot make one graph of forward and backward pass: {first_line(error)}"
            ) from error
        signature = joint.graph_signature
        names = unwrapped(model)
        first = _first_names(model)
        inputs = tuple(
            Value("alias" if spec.target in aliases else _role(spec), names(first.get(spec.target, spec.arg.name)))
            for spec in signature.input_specs
        )
        results = tuple(
            Value(_result(spec), names(first.get(spec.target, spec.target or "loss")))
            for spec in signature.output_specs
        )
        tensors = _tensors(joint, model, arguments)
        flat = _flat(joint.graph_module, tensors, places, inputs)
    return JointGraph(flat, tensors, inputs, results, dropouts, unused, places)


def _check_regions(exported: Any, named: Callable[[str], str]) -> None:
    import torch

    check_calls(exported, torch.ops.higher_order.wrap_with_set_grad_enabled)
    for node in exported.graph.nodes:
        if recomputed_in(node):
            raise CdmppError(
                f"torch.utils.checkpoint runs parts of the forward pass again ({named(place_in_model(node))}), while a "
                "training step of TVM's programs keeps every result: ask with --runtime torch, or leave checkpoint out "
                "(of transformers: gradient_checkpointing_disable())"
            )


def unwrapped(model: Any) -> Callable[[str], str]:
    """Return a function from the name of a parameter of a wrapped model to that of the model itself."""
    prefix = ""
    while type(model).__name__ in WRAPPERS and hasattr(model, "inner"):
        prefix, model = f"{prefix}inner.", model.inner
    return lambda name: name.removeprefix(prefix)


def _exporter() -> Any:
    import torch

    have = tuple(int(part) for part in torch.__version__.split(".")[:2])
    low, high = TORCH
    try:
        if not low <= have < high:
            raise ImportError
        from torch.export.experimental import _export_forward_backward
    except ImportError:
        raise NoJointGraphError(
            f"torch {torch.__version__} cannot export a backward pass for this package, which uses a private function "
            f"of torch from {low[0]}.{low[1]} to before {high[0]}.{high[1]}: install one of these"
        ) from None
    return _export_forward_backward


def _freeze_unused(model: Any, arguments: tuple[Any, ...]) -> tuple[str, ...]:
    """Parameters without a gradient need none: the export of the joint graph fails on those that ask for one."""
    import torch

    asked = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not asked:
        raise CdmppError("no parameter of the model requires a gradient: there is nothing to train")
    try:
        loss = model(*arguments)[0]
        found = torch.autograd.grad(loss.sum(), list(asked.values()), allow_unused=True)
    except Exception as error:
        if isinstance(error, CdmppError):
            raise
        where = f" at {place}" if (place := place_of(error)) else ""
        raise CdmppError(f"the model cannot be trained by its loss{where}: {first_line(error)}") from error
    unused = tuple(name for name, gradient in zip(asked, found, strict=True) if gradient is None)
    for name in unused:
        asked[name].requires_grad_(False)
    return unused


def _without_aliases(exported: Any) -> set[str]:
    """Names of parameters that the graph reads under another name: no gradient is asked of them. It is changed."""
    kinds = {spec.arg.name: spec for spec in exported.graph_signature.input_specs if spec.kind.name == "PARAMETER"}
    found = set()
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in kinds and not node.users:
            node.meta["val"] = node.meta["val"].detach()
            found.add(kinds[node.name].target)
    return found


def _first_names(model: Any) -> dict[str, str]:
    """Every name of a parameter or buffer -> the first of the same tensor: weights may be tied."""
    found: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: found.setdefault(id(tensor), name) for name, tensor in named}


def _tensors(joint: Any, model: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    parameters, buffers = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    named, given = {**joint.constants, **dict(parameters), **dict(buffers)}, iter(_leaves(arguments))
    return tuple(
        (named[spec.target] if spec.target else next(given)).detach() for spec in joint.graph_signature.input_specs
    )


def _flat(graph: Any, tensors: tuple[Any, ...], places: Places, inputs: tuple[Value, ...]) -> Any:
    """The joint graph taken apart into core operators."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    aten, at = torch.ops.aten, list[Any]()
    for node in graph.graph.nodes:  # strides change on the second trace: a view may not hold
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    graph.recompile()

    class Remembering(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            at[:] = [node]
            return super().run_node(node)

    def run(*values: Any) -> Any:
        return Remembering(graph).run(*values)

    try:
        return make_fx(run, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)
    except Exception as error:
        names = [value.name if value.role == "parameter" else "" for value in inputs]
        place = place_in_step(at[0], places, names) if at else ""
        what = f"the torch operator {getattr(at[0].target, '__name__', at[0].target)}" if at else "the backward pass"
        where = f" at {place}" if place else ""
        raise NoJointGraphError(f"{what}{where} cannot be taken apart: {first_line(error)}") from error


def _leaves(arguments: Sequence[Any]) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(tuple(arguments)) if isinstance(leaf, torch.Tensor)]


def _role(spec: Any) -> str:
    kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "USER_INPUT": "input"}
    return kinds.get(spec.kind.name, "constant")


def _result(spec: Any) -> str:
    kinds = {"LOSS_OUTPUT": "loss", "GRADIENT_TO_PARAMETER": "gradient", "BUFFER_MUTATION": "buffer"}
    return kinds.get(spec.kind.name, "other")
