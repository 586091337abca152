"""Blocks: a list of modules of a model that run one after the other and are alike, so that a few of them say the rest.

Nothing is known by name: modules are compared, and the model is run once, without values, to compare the operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

from cdmpp.programs.as_exported import as_exported

FEW = (4, 5)
"""Numbers of blocks that are read: the second one where the first one does not say what all run."""
LEAST = 8
"""Blocks of a list that is shortened; of fewer, all are read about as fast."""
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)  # fmt: skip
_REGISTERED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", *_HOOKS)


@dataclass(frozen=True, eq=False)
class Blocks:
    """These modules of a model are alike."""

    parent: Any
    """``torch.nn.ModuleList`` or ``torch.nn.Sequential`` that has them."""
    names: tuple[str, ...]
    """Their names in it."""
    few: int = FEW[0]
    """So many of them are read."""

    @property
    def copies(self) -> int:
        """Return how many of them are not read."""
        return len(self.names) - self.few

    @property
    def middle(self) -> int:
        """Return the number of the block of which they are copies; the one behind it is read, too, and the last one."""
        return self.few - 3

    @contextlib.contextmanager
    def shortened(self) -> Iterator[None]:
        """Leave the first ``few`` of them in the model for a while."""
        children = self.parent._modules
        whole = dict(children)
        for name in self.names[self.few :]:
            del children[name]
        try:
            yield
        finally:
            children.clear()
            children.update(whole)


def blocks_in(model: Any, example: tuple[Any, ...], few: int = FEW[0]) -> Blocks | None:
    """Return the largest list of a model that is made of blocks, ``LEAST`` or more; None where there is none.

    Blocks have the same modules, parameters of the same shapes, and the same attributes, but for their own number. Each
    is called once, with the results of the one before it and otherwise with the same arguments, and runs the same
    operators (the first one may run others); nothing runs between two of them, and only the last one's results are read
    by anything else. What runs before and behind them is the same with few of them in the list.

    Args:
        model: a torch module.
        example: ``model(*example)`` runs.
        few: blocks that are to be read, one of ``FEW``.
    """
    import torch

    lists = [one for one in _outermost(model) if isinstance(one, torch.nn.ModuleList | torch.nn.Sequential)]
    found = [one for one in lists if len(one) >= LEAST and _are_alike(list(one)) and _own_all(model, one)]
    if not found:
        return None
    largest = max(found, key=lambda one: sum(each.numel() for each in one.parameters()))
    made, whole = Blocks(largest, tuple(largest._modules), few), _run(model, example, list(largest))
    if whole is None or not whole.is_chain:
        return None
    with made.shortened():
        short = _run(model, example, list(largest))
    return made if short is not None and short.is_chain and short.outside == whole.outside else None


def _outermost(module: Any) -> Iterator[Any]:
    """Yield the modules of several children of which none is inside another one."""
    import torch

    for child in module.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.Sequential) and len(child) >= LEAST:
            yield child
        else:
            yield from _outermost(child)


def _own_all(model: Any, blocks: Any) -> bool:
    """Return True if no parameter or buffer of the blocks has a second name."""
    own = [id(one) for one in (*blocks.parameters(), *blocks.buffers())]
    every = [id(one) for _, one in model.named_parameters(remove_duplicate=False)]
    every += [id(one) for _, one in model.named_buffers(remove_duplicate=False)]
    own_once = set(own)
    return len(own_once) == len(own) == sum(one in own_once for one in every)


def _are_alike(blocks: list[Any]) -> bool:
    first = blocks[0]
    return any(True for _ in first.parameters()) and all(
        _is_alike(first, one, (0, number)) for number, one in enumerate(blocks[1:], 1)
    )


def _is_alike(one: Any, two: Any, numbers: tuple[int, int]) -> bool:
    """Return True if two modules, parts of the blocks of these numbers, compute the same."""
    if type(one) is not type(two) or any(getattr(each, name) for each in (one, two) for name in _HOOKS):
        return False
    for name in ("_parameters", "_buffers"):
        pair = getattr(one, name), getattr(two, name)
        if list(pair[0]) != list(pair[1]) or not all(map(_is_as_large, pair[0].values(), pair[1].values())):
            return False
    if list(one._modules) != list(two._modules):
        return False
    own, other = ({key: value for key, value in vars(each).items() if key not in _REGISTERED} for each in (one, two))
    if own.keys() != other.keys() or not all(_is_same(own[key], other[key], one, two, numbers) for key in own):
        return False
    pairs = zip(one._modules.values(), two._modules.values(), strict=True)
    return all(a is b is None or (a is not None and b is not None and _is_alike(a, b, numbers)) for a, b in pairs)


def _is_as_large(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    names = ("shape", "dtype", "device", "requires_grad")
    return one.stride() == two.stride() and all(getattr(one, name) == getattr(two, name) for name in names)


def _is_same(one: Any, two: Any, own: Any, other: Any, numbers: tuple[int, int]) -> bool:
    """Return True if an attribute of two modules says the same: it is equal, or is the number of its block."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if type(one) is int and (one, two) == numbers:
        return True
    if isinstance(one, bool | int | float | complex | str | bytes | set | frozenset):
        return one == two
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(_is_same(a, b, own, other, numbers) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return list(one) == list(two) and all(_is_same(one[key], two[key], own, other, numbers) for key in one)
    if isinstance(one, partial):
        pairs = ((one.func, two.func), (one.args, two.args), (one.keywords, two.keywords))
        return all(_is_same(a, b, own, other, numbers) for a, b in pairs)
    if isinstance(one, MethodType):
        bound = one.__self__ is two.__self__ or (one.__self__ is own and two.__self__ is other)
        return bound and one.__func__ is two.__func__
    return False


def _run(model: Any, example: tuple[Any, ...], blocks: list[Any]) -> _Run | None:
    """Run a model without values; None where it cannot run so."""
    import torch
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    run = _Run(blocks)
    without_values = detect_fake_mode([*model.parameters(), *example]) or FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with torch.enable_grad(), as_exported(without_values), run.watched():
            run.result = model(*example)
    except Exception:
        return None
    return run


class _Run:
    """One run of a model, without values, and the operators that each block runs."""

    def __init__(self, blocks: list[Any]) -> None:
        self.blocks = blocks
        self.calls = list[tuple[int, Any, list[Any], int]]()
        """Block, form and values of its arguments, and how many operators ran before it."""
        self.made = list[list[Any]]()
        """Results of each call."""
        self.ran = list[list[Any]]()
        """Operators of each call, with the forms of what they read and the modes that they run in."""
        self.outside = list[Any]()
        """Operators outside of blocks, with the forms of what they read and the modes that they run in."""
        self.inside, self.read = False, set[int]()
        """True in a block; and the tensors that operators behind the last block read."""
        self.result: Any = None
        self.inner = {id(one) for block in blocks for one in (*block.parameters(), *block.buffers())}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        run = self

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function.namespace == "prim":  # asks a tensor of its device, and computes nothing
                    return function(*args, **(kwargs or {}))
                ran = run.ran[-1] if run.inside else run.outside
                ran.append((function, _modes(), *map(_form, tree_leaves((args, kwargs)))))
                if not run.inside:
                    run.read |= {id(one) for one in tree_leaves((args, kwargs))}
                return function(*args, **(kwargs or {}))

        kept = [vars(block).get("forward") for block in self.blocks]
        for number, block in enumerate(self.blocks):
            block.forward = partial(self._called, number, block.forward)
        try:
            with Watch():
                yield
        finally:
            for block, forward in zip(self.blocks, kept, strict=True):
                del block.forward
                if forward is not None:
                    block.forward = forward

    def _called(self, number: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

        values, form = tree_flatten((args, kwargs))
        self.calls.append((number, form, values, len(self.outside)))
        self.ran.append([_modes()])
        self.inside = True
        result = forward(*args, **kwargs)
        self.inside = False
        # own tensors, so that what a block passes on unread counts as its result
        found = tree_map_only(torch.Tensor, lambda one: torch.empty_like(one, requires_grad=one.requires_grad), result)
        del self.outside[self.calls[-1][3] :]
        self.read &= self.inner
        self.made.append([one for one in tree_leaves(found) if isinstance(one, torch.Tensor)])
        return found

    @property
    def is_chain(self) -> bool:
        """Return True if each block was called once, with the results of the one before it, and all ran the same."""
        from torch.utils._pytree import tree_leaves

        if [number for number, *_ in self.calls] != list(range(len(self.blocks))):
            return False
        if len({operators for *_, operators in self.calls}) > 1:
            return False
        if any(one != self.ran[1] for one in self.ran[2:]):
            return False
        second = self._tokens(1)
        if ("before", 0) not in second[1] or any(self._tokens(one) != second for one in range(2, len(self.calls))):
            return False
        behind = self.inner | {id(one) for found in self.made[:-1] for one in found}
        return not behind & (self.read | {id(one) for one in tree_leaves(self.result)})

    def _tokens(self, number: int) -> tuple[Any, list[Any]]:
        """Return the form of a call's arguments, and of each whether it is a result of the block before it."""
        import torch

        _, form, values, _ = self.calls[number]
        before = {id(one): place for place, one in enumerate(self.made[number - 1])}
        found = list[Any]()
        for one in values:
            if id(one) in before:
                found.append(("before", before[id(one)]))
            else:
                found.append(("same", id(one)) if isinstance(one, torch.Tensor) or not _is_plain(one) else one)
        return form, found


def _modes() -> tuple[Any, ...]:
    """Return what decides what runs beside an operator: gradients, checkpoints and autocast."""
    import torch

    casts = [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cpu", "cuda")]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks is None, *casts


def _form(value: Any) -> Any:
    """Return what of an operator's argument decides how much it computes; numbers do not, but for zero."""
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    if isinstance(value, float):
        return bool(value)
    return value if _is_plain(value) or isinstance(value, torch.dtype) else type(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
