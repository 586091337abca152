"""Methods of tensors on a GPU that is not there, under a torch that was built without CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cdmpp.programs.patch import patched


@contextmanager
def unguarded() -> Iterator[None]:
    """Let methods run that ask for a guard of CUDA, of which there is none: the operators behind them ask for none."""
    import torch

    operators = {"copy_": torch.ops.aten.copy_, "__invert__": torch.ops.aten.bitwise_not}
    with ExitStack() as stack:
        for name, operator in operators.items():
            stack.enter_context(patched(torch.Tensor, name, _method(operator)))
        yield


def _method(operator: Any) -> Any:
    return lambda this, *given, **named: operator(this, *given, **named)
