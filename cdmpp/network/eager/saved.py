"""Autograd is asked what it keeps of each node of an exported graph: nodes run on tensors that have no values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.network.eager.formula import Formula
from cdmpp.network.eager.kept import told_of_kept
from cdmpp.network.eager.policies import Asked, Policies
from cdmpp.network.eager.saved_attention import attention_function
from cdmpp.network.eager.saved_form import Form, form_of, forms, known_gradients
from cdmpp.network.eager.temporaries import Gradients, gradients_of
from cdmpp.network.eager.without_values import ON_CPU, hollow, key_of, on_cpu, on_meta, runs, told
from cdmpp.operators.aten import name_of
from cdmpp.operators.aten_attention import ATTENTION
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.operators.aten_recurrent import GATES, recurrent_sizes
from cdmpp.programs.refusal import first_line
from cdmpp.programs.regions import gradients_on

BEFORE, WITHIN, AFTER = "before", "within", "after"
"""When a node hands the last tensor to its backward pass: before its first kernel, before its last one, at its end."""


class Saved(NamedTuple):
    """A node writes some of these buffers, and its backward pass reads the others."""

    made: Mapping[int, int] = MappingProxyType({})
    """Number -> bytes of its results, also of those that it overwrites. Views of others are not among them."""
    kept: Mapping[int, int] = MappingProxyType({})
    """Number -> bytes of what its backward pass reads. Parameters and inputs of the network are left out."""
    last: str = ""
    """``BEFORE``, ``WITHIN`` or ``AFTER``; empty: its backward pass reads nothing at all, of parameters neither."""
    backward_bytes: int | None = 0
    """Most bytes of gradients and temporaries alive in its backward pass; None: unknown."""
    formula: Formula | None = None
    """The kernels of its backward pass; None: unknown."""
    is_stored: bool = False
    """The policy of a checkpointed region keeps its result, so that it does not run again."""


class Autograd:
    """It runs the nodes of an exported graph one after the other, on a CPU's tensors without values.

    Buffers are storages: views share the one that they see. What autograd keeps depends on the device in few places:
    on GPUs some operators are one kernel that are several on CPUs.
    """

    def __init__(self, exported: Any, kind: str) -> None:
        """Begin with a ``torch.export.ExportedProgram`` and the kind of device, ``cpu`` or ``gpu``."""
        self.module, self.kind = exported.graph_module, kind
        self.values = dict[Any, Any]()
        self.storages = dict[int, Any]()
        """Number -> storage, which lives here: its number is that of no other."""
        self.unseen = 0
        """Buffers below 0 are of nodes whose like ran before, so that they have no storage here."""
        self.new = set[int]()
        """Numbers of those that the last node made."""
        self.given = set[int]()
        """Numbers of parameters, buffers, constants and inputs."""
        self.policies = Policies()

    def give(self, node: Any, is_trained: bool) -> None:
        """Make the tensor of a parameter or input of the graph."""
        import torch

        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            value = hollow(value, is_trained)
            self.given.add(self._number(value))
        self.values[node] = value

    def constant(self, node: Any) -> None:
        """Read an attribute of the graph's module."""
        import torch

        value = operator.attrgetter(node.target)(self.module)
        if isinstance(value, torch.Tensor):
            value = hollow(value)
            self.given.add(self._number(value))
        self.values[node] = value

    def run(self, node: Any) -> Saved:
        """Run a call of the graph. ``UnsupportedProgramError`` names the operator that needs values."""
        from torch.fx import map_arg

        args, kwargs = on_meta(node.target, *map_arg((node.args, node.kwargs), self.values.__getitem__))
        mutates = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        key, labels, asked = None, dict[int, int](), self.policies.of(node)
        if not mutates and asked is None:

            def described(tensor: Any) -> Any:
                label = labels.setdefault(self._number(tensor), len(labels))
                return told(tensor), tensor.requires_grad, label

            chosen = node.meta.get(ATTENTION)
            key = node.target, self.kind, chosen, gradients_on(node), key_of((args, kwargs), described)
        self.new.clear()
        known = forms().get(key)
        if known is None:
            own = _on_gpus(node) if self.kind == "gpu" else _on_cpus(node)
            function = attention_function(node) or own or node.target
            if key is not None and name_of(node) in ON_CPU:
                known = self._on_cpu(node, function, args, kwargs, labels)
                if known is not None:
                    forms().put(key, known)
        if known is None:
            # before a node that writes in place changes where its arguments come from
            backward = known_gradients().get(key) if key is not None else None
            if backward is None:
                backward = gradients_of(function, args, kwargs) if gradients_on(node) else Gradients(0)
                if key is not None:
                    known_gradients().put(key, backward)
            found, packed, last = self._run(node, function, args, kwargs, asked)
            for one in tensors_in(found):
                self._number(one)
            if key is not None and (form := form_of(found, self._number, self.new, packed, last, labels, backward)):
                forms().put(key, form)
        else:
            found, packed = self._again(known, [*labels])
            last, backward = known.last, known.backward
        self.values[node] = found
        written = {self._number(one): one.untyped_storage().nbytes() for one in tensors_in(found)}
        parts = {self._number(one) for one in tensors_in(found) if one._base is None and not _is_whole(one)}
        overwritten = written.keys() - parts if mutates else set()  # a part of ``unsafe_chunk`` is no view to autograd
        made_now = {number: size for number, size in written.items() if number in overwritten | self.new}
        made, kept = ({key: size for key, size in one.items() if key not in self.given} for one in (made_now, packed))
        return Saved(made, kept, last, *backward, asked is not None and asked.keeps)

    def _run(
        self, node: Any, function: Any, args: Any, kwargs: Any, asked: Asked | None
    ) -> tuple[Any, dict[int, int], str]:
        """Run a node: return what it gives, bytes of the buffers that its backward pass reads, and ``Saved.last``."""
        import torch

        packed, kernels, at = dict[int, int](), _kernel_mode()(), list[int]()
        kernels.asked = asked

        def tell(tensor: Any) -> None:
            packed[self._number(tensor)] = tensor.untyped_storage().nbytes()
            at.append(kernels.count)

        try:
            with kernels, torch.set_grad_enabled(gradients_on(node)), told_of_kept(tell):
                found = function(*args, **kwargs)
        except Exception as error:
            raise UnsupportedProgramError(
                f"what autograd keeps of {node.target} ({node.name}) cannot be known without values: "
                f"{first_line(error)}"
            ) from error
        last = "" if not at else BEFORE if not at[-1] else AFTER if at[-1] == kernels.count else WITHIN
        return found, packed, last

    def _on_cpu(self, node: Any, function: Any, args: Any, kwargs: Any, labels: Mapping[int, int]) -> Form | None:
        """Run a node on tensors of a CPU without values; ``labels``: of the storages of its arguments.

        None where two of them share one, or it gives what has no form.
        """
        mode = runs().mode
        args, kwargs, pairs = on_cpu(mode, args, kwargs)
        own = {self._number(twin): labels[self._number(one)] for one, twin in pairs}
        if len({*own.values()}) < len(own):
            return None
        backward = gradients_of(function, args, kwargs, mode) if gradients_on(node) else Gradients(0)
        self.new.clear()
        with mode:
            found, packed, last = self._run(node, function, args, kwargs, None)
        sizes = {self._number(twin): one.untyped_storage().nbytes() for one, twin in pairs}  # of a view the whole one
        packed = {number: sizes.get(number, size) for number, size in packed.items()}
        for one in tensors_in(found):
            self._number(one)
        return form_of(found, self._number, self.new, packed, last, own, backward, of_own=True)

    def _again(self, form: Form, given: list[int]) -> tuple[Any, dict[int, int]]:
        """Return what a run of a known form gives and keeps; ``given``: numbers of the storages of its arguments."""
        values = form.values()
        numbers = [self._number(one) for one in values if one is not None]
        self.unseen -= len(form.kept)
        of = {"argument": given.__getitem__, "result": numbers.__getitem__, "own": self.unseen.__add__}
        kept = {of[where](place): size for where, place, size in form.kept}
        return values[0] if form.many is None else form.many(values), kept

    def tensor_nodes(self, node: Any) -> list[Any]:
        """List the nodes of the tensors that a node is given, in the order of ``Formula.makers``."""
        import torch
        from torch.utils import _pytree

        leaves = [one for one in _pytree.tree_leaves((node.args, dict(node.kwargs))) if hasattr(one, "meta")]
        return [one for one in leaves if isinstance(self.values[one], torch.Tensor)]

    def storages_of(self, node: Any) -> list[tuple[int, bool]]:
        """Storages that tensors of a node lie in, by number, and whether a tensor is all of its storage."""
        seen = tensors_in(self.values[node])
        return [(self._number(one), _is_whole(one)) for one in seen]

    def learns(self, node: Any) -> bool:
        """Return True if a gradient goes through what a node gives."""
        return any(one.requires_grad for one in tensors_in(self.values[node]))

    def wholes_of(self, node: Any) -> list[Any]:
        """Tensors of which those of a node are views with the same history, else they themselves."""
        return [one if one._base is None else one._base for one in tensors_in(self.values[node])]

    def _number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        number = int(storage._cdata)
        if number not in self.storages:
            self.storages[number] = storage
            self.new.add(number)
        return number


def _is_whole(tensor: Any) -> bool:
    return bool(tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes())


def overwritten_by(node: Any) -> list[Any]:
    """List the nodes whose tensors a node writes into."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
    found = [given.get(one.name) for one in schema.arguments if one.is_write]
    return [one for value in found for one in (value if isinstance(value, list | tuple) else [value]) if one]


@cache
def _kernel_mode() -> Any:
    """A class of modes, each of which counts the kernels that run under it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Kernels(TorchDispatchMode):
        count = 0
        asked: Asked | None = None

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.namespace == "aten" and not func.is_view
            found = func(*args, **(kwargs or {}))
            if self.asked is not None:
                self.asked.ask(func, args, kwargs or {}, found)
            return found

    return Kernels


def _on_gpus(node: Any) -> Callable[..., Any] | None:
    """Return what keeps the same as a GPU's kernel of the node; None where it keeps what that of CPUs does."""
    import torch

    aten, name = torch.ops.aten, getattr(node.target, "_opname", "")
    if name == "dropout" and 0 < node.args[1] < 1 and node.args[2]:
        return lambda *args: aten.native_dropout(*args)[0]
    if name in GATES:
        return _recurrent(node, recurrent_sizes(node, name).reserve_bytes)
    if name == "rms_norm":
        return lambda *args, **kwargs: aten._fused_rms_norm(*_four(args, kwargs))[0]
    return None


def _on_cpus(node: Any) -> Callable[..., Any] | None:
    """Return what keeps as much as oneDNN's LSTM, of padded sequences and without projections; else None."""
    if getattr(node.target, "_opname", "") != "lstm" or getattr(node.target, "_overloadname", "") != "input":
        return None
    sizes = recurrent_sizes(node, "lstm")
    return None if sizes.projected else _recurrent(node, sizes.workspace_bytes)


def _recurrent(node: Any, reserve_bytes: int) -> Callable[..., Any]:
    """Return what keeps inputs, results, weights, and a reserve of a library's own."""
    import torch

    class Recurrent(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, shapes: Any, *tensors: Any) -> Any:
            results = tuple(tensors[0].new_empty(shape) for shape in shapes)
            ctx.save_for_backward(*tensors, *results, tensors[0].new_empty(reserve_bytes, dtype=torch.uint8))
            return results

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            given = ctx.saved_tensors[: len(ctx.needs_input_grad) - 1]
            return None, *(torch.empty_like(one) for one in given)

    shapes = [tuple(one.shape) for one in tensors_in(node.meta["val"])]

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        return Recurrent.apply(shapes, *(one for one in tensors if one.is_floating_point()))

    return run


def _four(args: Any, kwargs: Any) -> tuple[Any, ...]:
    given = (*args, *[None] * (4 - len(args)))
    return (*given[:2], kwargs.get("weight", given[2]), kwargs.get("eps", given[3]))
