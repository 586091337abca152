"""Autograd is asked what it keeps of each node of an exported graph: nodes run on tensors that have no values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_layout import arguments_of, tensors_in
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


class Autograd:
    """It runs the nodes of an exported graph one after the other, on a CPU's tensors without values.

    Buffers are storages: views share the one that they see. What autograd keeps depends on the device in few places:
    on GPUs some operators are one kernel that are several on CPUs.
    """

    def __init__(self, exported: Any, kind: str) -> None:
        """Begin with a ``torch.export.ExportedProgram`` and the kind of device, ``cpu`` or ``gpu``."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.module, self.kind = exported.graph_module, kind
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.values = dict[Any, Any]()
        self.storages = dict[int, Any]()
        """Number -> storage, which lives here: its number is that of no other."""
        self.given = set[int]()
        """Numbers of parameters, buffers, constants and inputs."""

    def give(self, node: Any, is_trained: bool) -> None:
        """Make the tensor of a parameter or input of the graph."""
        import torch

        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            with self.mode:
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, requires_grad=is_trained)
            self.given.add(self._number(value))
        self.values[node] = value

    def constant(self, node: Any) -> None:
        """Read an attribute of the graph's module."""
        import torch

        value = operator.attrgetter(node.target)(self.module)
        if isinstance(value, torch.Tensor):
            value = self.mode.from_tensor(value)
            self.given.add(self._number(value))
        self.values[node] = value

    def run(self, node: Any) -> Saved:
        """Run a call of the graph. ``UnsupportedProgramError`` names the operator that needs values."""
        import torch
        from torch.fx import map_arg
        from torch.utils._pytree import tree_map_only

        args, kwargs = tree_map_only(
            torch.device, lambda _: torch.device("cpu"), map_arg((node.args, node.kwargs), self.values.__getitem__)
        )
        function = _on_gpus(node) if self.kind == "gpu" else None
        known, packed, kernels = set(self.storages), dict[int, int](), _kernels()
        at = list[int]()

        def pack(tensor: Any) -> Any:
            packed[self._number(tensor)] = tensor.untyped_storage().nbytes()
            at.append(kernels.count)

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
        try:
            with self.mode, kernels, torch.set_grad_enabled(gradients_on(node)), hooks:
                result = (function or node.target)(*args, **kwargs)
        except Exception as error:
            raise UnsupportedProgramError(
                f"what autograd keeps of {node.target} ({node.name}) cannot be known without values: "
                f"{first_line(error)}"
            ) from error
        self.values[node] = result
        mutates = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        written = {self._number(one): one.untyped_storage().nbytes() for one in tensors_in(result)}
        made = {number: size for number, size in written.items() if mutates or number not in known}
        last = "" if not at else BEFORE if not at[-1] else AFTER if at[-1] == kernels.count else WITHIN
        made, kept = ({key: size for key, size in one.items() if key not in self.given} for one in (made, packed))
        return Saved(made, kept, last)

    def storages_of(self, node: Any) -> list[tuple[int, bool]]:
        """Storages that tensors of a node lie in, by number, and whether a tensor is all of its storage."""
        seen = tensors_in(self.values[node])
        return [(self._number(one), one.numel() * one.itemsize == one.untyped_storage().nbytes()) for one in seen]

    def wholes_of(self, node: Any) -> list[Any]:
        """Tensors of which those of a node are views with the same history, else they themselves."""
        return [one if one._base is None else one._base for one in tensors_in(self.values[node])]

    def _number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage
        return int(storage._cdata)


def overwritten_by(node: Any) -> list[Any]:
    """List the nodes whose tensors a node writes into."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
    found = [given.get(one.name) for one in schema.arguments if one.is_write]
    return [one for value in found for one in (value if isinstance(value, list | tuple) else [value]) if one]


def _kernels() -> Any:
    """A mode that counts the kernels that run under it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Kernels(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.namespace == "aten" and not func.is_view
            return func(*args, **(kwargs or {}))

    return Kernels()


def _on_gpus(node: Any) -> Callable[..., Any] | None:
    """Return what keeps the same as a GPU's kernel of the node; None where it keeps what that of CPUs does."""
    import torch

    aten, name = torch.ops.aten, getattr(node.target, "_opname", "")
    if name == "dropout" and 0 < node.args[1] < 1 and node.args[2]:
        return lambda *args: aten.native_dropout(*args)[0]
    if name == "rms_norm":
        return lambda *args, **kwargs: aten._fused_rms_norm(*_four(args, kwargs))[0]
    if name != "scaled_dot_product_attention":
        return None
    given = arguments_of(node)
    if given["query"].dim() != 4 or (given.get("enable_gqa") and given["query"].dtype == torch.float32):
        return None
    return _fused_attention


def _four(args: Any, kwargs: Any) -> tuple[Any, ...]:
    given = (*args, *[None] * (4 - len(args)))
    return (*given[:2], kwargs.get("weight", given[2]), kwargs.get("eps", given[3]))


def _fused_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **_: Any
) -> Any:
    import torch

    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, attn_mask, True, dropout_p, is_causal)[0]
