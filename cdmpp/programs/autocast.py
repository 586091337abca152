"""Regions of ``torch.autocast`` of a model, as they are on the device that is asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, NoReturn

from cdmpp.programs.patch import patched

AUTOCAST = "cdmpp_autocast"
"""Key of an ``Autocast`` in the ``meta`` of a node."""
REMEDY = "call .bfloat16() or .half() on the module and its inputs"
_NETWORK = "ask for --runtime torch, or leave the region out and ask for --precision fp16"
_ASKED = "_cdmpp_asked"
DEVICES = {"cpu": "cpu", "gpu": "cuda"}


class Autocast(NamedTuple):
    """This is the innermost region of autocast around a node."""

    device: str
    dtype: Any
    """Data type of products, such as ``torch.bfloat16``."""
    enabled: bool
    caches: bool
    """True if a weight is cast once in the whole region."""
    region: str
    """Name of the outermost region."""


def under_autocast(module: Any, kind: str, dtype: str) -> Any:
    """Return a module that runs another one in a region of autocast.

    Args:
        module: a torch module.
        kind: of the device, ``cpu`` or ``gpu``.
        dtype: name of the type of its products, such as ``bfloat16``.
    """
    import torch

    class UnderAutocast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *values: Any) -> Any:
            with torch.autocast(DEVICES[kind], getattr(torch, dtype)):
                return self.inner(*values)

    return UnderAutocast().train(module.training)


@contextmanager
def seen_as_on(kind: str | None, refuse: Callable[[str], NoReturn], told: dict[str, None]) -> Iterator[None]:
    """Treat regions of autocast as they are on another device, while a model is exported on a CPU.

    Args:
        kind: of that device, ``cpu`` or ``gpu``; None: enabled regions are refused.
        refuse: is called with what is wrong.
        told: gets what was taken for something else, a sentence each.
    """
    import torch

    kinds = torch.amp.autocast_mode.autocast
    init, enter = vars(kinds)["__init__"], vars(kinds)["__enter__"]

    def made(
        this: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        device = device_type
        if kind == "gpu" and device_type in DEVICES.values():
            dtype, device = dtype or torch.get_autocast_dtype("cuda"), "cpu"
            if device_type == "cpu" and enabled:
                told[
                    "a region of torch.autocast('cpu') is taken for one of the GPU, as where the type of its device is "
                    "that of its input; one that names the CPU changes nothing on a GPU"
                ] = None
        init(this, device, dtype, enabled, True if cache_enabled is None else cache_enabled)
        setattr(this, _ASKED, (device_type, enabled))

    def enter_seen(this: Any) -> Any:
        device, enabled = getattr(this, _ASKED, (this.device, this._enabled))
        if kind is None and enabled:
            refuse(
                f"a region of torch.autocast({device!r}, {this.fast_dtype}) runs products in another type, which is "
                f"not made here: {_NETWORK}"
            )
        if kind == "gpu" and enabled and device not in DEVICES.values():
            refuse(f"a region of torch.autocast({device!r}): those of 'cuda' and 'cpu' are read")
        if not hasattr(this, _ASKED) and device == "cuda" and not enabled and kind != "cpu":
            refuse(
                "torch.autocast('cuda') was made outside forward (as a decorator), where torch turns it off on a "
                "machine without CUDA: whether it is on cannot be told. Write `with torch.autocast(...)` inside forward"
            )
        entered = enter(this)
        torch.set_autocast_cache_enabled(False)  # the region keeps its word in the graph, a trace has none to keep
        return entered

    with ExitStack() as stack:
        stack.enter_context(patched(kinds, "__init__", made))
        stack.enter_context(patched(kinds, "__enter__", enter_seen))
        yield
