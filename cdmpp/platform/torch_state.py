"""Usual torch: what a caller has switched in torch, such as ``no_grad`` or autocast, changes no answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def usual_torch() -> Iterator[None]:
    """Let a block, or as a decorator a function, run with gradients, without autocast, and with tensors on the CPU.

    Random numbers that it draws are not missed by the caller.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield
