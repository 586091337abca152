"""Marks on the nodes, or refuses by name, what a model does during its export and its graph does not say.

``torch.export`` inlines a checkpointed region and one of ``inference_mode`` without a trace, and runs a custom
``autograd.Function`` only as its forward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NoReturn

from cdmpp.errors import CdmppError
from cdmpp.programs.autocast import seen_as_on
from cdmpp.programs.patch import patched
from cdmpp.programs.refusal import place_here
from cdmpp.programs.regions import RECOMPUTED, Recomputed

_OF_TORCH = ("torch.utils.checkpoint", "torch._higher_order_ops", "torch._library")
"""Modules whose functions are known by what they call.

Those of the second and the third stay in the graph, as calls and as operators that libraries register: whoever reads it
knows them, gradients included, or refuses them.
"""
_SAVED = "torch.autograd.graph.saved_tensors_hooks (or save_on_cpu) changes what the backward pass keeps"
_HOOK = "Tensor.register_hook changes a gradient in the backward pass"
_LEAVE = "a training step with it cannot be predicted: leave it out, or predict the forward pass alone (cdmpp network)"


@contextmanager
def watched(trains: bool, kind: str | None = None) -> Iterator[dict[str, None]]:
    """Mark checkpointed regions while a model is exported, and refuse what a graph cannot tell.

    Args:
        trains: whether a backward pass will be made of the graph. Gradients are on; else nothing keeps them.
        kind: of the device that regions of autocast are for, ``cpu`` or ``gpu``; None: none are understood.

    Yields:
        What is taken for something else, a sentence each, once the model was exported.

    Raises:
        CdmppError: on leaving, where the model has such a thing; it names it and what to do.
    """
    import torch
    import torch.export._trace  # here: what it imports reads names that are replaced below
    from torch.fx import traceback
    from torch.utils import checkpoint

    watch, function, told = _Watch(trains), torch.autograd.Function, dict[str, None]()
    original = checkpoint._checkpoint_without_reentrant_generator
    with ExitStack() as stack:
        for owner, name, value in (
            (checkpoint, "_checkpoint_hook", watch.non_reentrant),
            (checkpoint, "_checkpoint_without_reentrant_generator", watch.noting(original)),
            (checkpoint, "_CachingTorchDispatchMode", _Unasked),
            (function, "apply", classmethod(watch.function(vars(function)["apply"].__func__))),
            (torch.autograd.graph.saved_tensors_hooks, "__enter__", watch.refusing(_SAVED, "__enter__")),
            (torch.Tensor, "register_hook", watch.refusing(_HOOK, "register_hook")),
            (torch.Tensor, "requires_grad_", watch.without_new_leaves(torch.Tensor.requires_grad_)),
            (torch.inference_mode, "__enter__", _without_gradients),
            (torch.inference_mode, "__exit__", _with_gradients_again),
        ):
            stack.enter_context(patched(owner, name, value))
        stack.enter_context(seen_as_on(kind, watch.refuse, told))
        stack.enter_context(traceback.preserve_node_meta())
        stack.enter_context(torch.enable_grad() if trains else torch.no_grad())
        try:
            yield told
        finally:
            if watch.refusal:  # the exporter may have made another error of it
                raise CdmppError(watch.refusal)


class _Unasked(nullcontext[None]):
    """It stands for the mode that keeps what a policy says: policies are asked when the graph is read."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


class _Watch:
    def __init__(self, trains: bool) -> None:
        self.trains = trains
        self.refusal = ""
        self.around: tuple[Recomputed, ...] = ()
        self.context_fn: Any = None
        self.count = 0

    def refuse(self, why: str) -> NoReturn:
        where = f" ({place})" if (place := place_here()) else ""
        self.refusal = self.refusal or f"{why}{where}"
        raise CdmppError(self.refusal)

    def refusing(self, what: str, name: str) -> Callable[..., Any]:
        import torch

        owner = torch.autograd.graph.saved_tensors_hooks if name == "__enter__" else torch.Tensor
        original = getattr(owner, name)

        def method(this: Any, *args: Any) -> Any:
            if self.trains and torch.is_grad_enabled() and _is_of_model(this):
                self.refuse(f"{what}: {_LEAVE}")
            return original(this, *args)

        return method

    def without_new_leaves(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def requires_grad_(this: Any, requires_grad: bool = True) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if self.trains and requires_grad and not this.requires_grad and caller.partition(".")[0] != "torch":
                self.refuse(f"Tensor.requires_grad_ inside forward asks for a gradient that no graph has: {_LEAVE}")
            return original(this, requires_grad)

        return requires_grad_

    def non_reentrant(self, frame: Any) -> Any:
        """Replace the hook that keeps nothing of a region: it is entered where gradients are on."""
        again = frame.recompute_fn
        cells = dict(zip(again.__code__.co_freevars, again.__closure__ or (), strict=False))
        context = cells["recompute_context"].cell_contents
        if type(context).__name__ == "_CachedTorchDispatchMode":
            if any(one.context_fn for one in self.around):
                self.refuse(
                    "torch.utils.checkpoint with a selective policy inside a region with another one: leave one out"
                )
            return self._marks(frame.early_stop, True, self.context_fn)
        if type(context).__name__ != "nullcontext" and not _is_composable(context):
            self.refuse(
                "torch.utils.checkpoint with a context_fn that is not of create_selective_checkpoint_contexts is not "
                f"read ({type(context).__name__}): call checkpoint without context_fn, or leave it out"
            )
        return self._marks(frame.early_stop, True)

    def noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note which ``context_fn`` a region is given: it makes policies anew, which may count what they saw."""

        def generator(
            fn: Any, preserve_rng_state: Any = True, context_fn: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            self.context_fn = context_fn
            return original(fn, preserve_rng_state, context_fn, *args, **kwargs)

        return generator

    def reentrant(self, run: Any, _preserves: bool, *args: Any) -> Any:
        import torch

        if not torch.is_grad_enabled():
            return run(*args)
        if not any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            with torch.no_grad():  # as torch does it, which warns that nothing in there is trained
                return run(*args)
        with self._marks(False, False):
            return run(*args)

    def function(self, original: Any) -> Callable[..., Any]:
        import torch
        from torch.utils import _pytree, checkpoint

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            if kind is checkpoint.CheckpointFunction:
                return self.reentrant(*args, **kwargs)
            learns = any(isinstance(one, torch.Tensor) and one.requires_grad for one in _pytree.tree_leaves(args))
            if self.trains and learns and torch.is_grad_enabled() and not kind.__module__.startswith(_OF_TORCH):
                if kind.__name__ == "BackwardHookFunction":
                    self.refuse(f"a backward hook of modules (register_module_full_backward_hook): {_LEAVE}")
                self.refuse(
                    f"{kind.__module__}.{kind.__qualname__} is a torch.autograd.Function, whose backward pass is its "
                    f"own and in no graph: {_LEAVE}"
                )
            return original(kind, *args, **kwargs)

        return apply

    @contextmanager
    def _marks(self, stops_early: bool, waits: bool, context_fn: Any = None) -> Iterator[None]:
        from torch.fx import traceback

        before = self.around
        self.around = (*before, Recomputed(self.count, stops_early, waits, context_fn))
        self.count += 1
        try:
            with traceback.annotate({RECOMPUTED: self.around}):
                yield
        finally:
            self.around = before


def _is_composable(context: Any) -> bool:
    """True for ``torch.distributed._composable.checkpoint``, which keeps its own hooks out of the second run."""
    function = getattr(context, "func", None)
    return getattr(function, "__name__", "") == "_no_hook" and len(context.args) == 1


def _without_gradients(this: Any) -> None:
    """Enter a ``torch.inference_mode`` region; it leaves no mark in an exported graph, unlike ``torch.no_grad``."""
    import torch

    this._cdmpp_before = torch.is_grad_enabled()
    torch.set_grad_enabled(this._cdmpp_before and not this.mode)


def _with_gradients_again(this: Any, *_: Any) -> None:
    import torch

    torch.set_grad_enabled(this._cdmpp_before)


def _is_of_model(given: Any) -> bool:
    """True if a hook is the model's own; torch has some where it traces."""
    pack = getattr(given, "pack_hook", None)
    return pack is None or not str(getattr(pack, "__module__", "")).startswith(("torch._", "torch.fx"))
