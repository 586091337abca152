"""DispatchLog: what PyTorch dispatches while it runs, by keys that a test chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Keys = Callable[[Any, tuple[Any, ...], Any], Iterable[Any]]
"""(operator, arguments, result) -> keys to note of a call; none: it is left out."""


class DispatchLog(TorchDispatchMode):
    """It notes the calls that run under it."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys
        self.order: list[Any] = []

    @property
    def seen(self) -> Counter[Any]:
        """Calls of each key."""
        return Counter(self.order)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.order += self.keys(func, args, out)
        return out
