"""Keywords of version 0.1 that have another name or place by now; they go with the next version."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_FIELDS = ("batch", "inputs", "dtype", "loss", "target", "optimizer", "train")


def takes_old_names(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function also take keywords by their old ``names``, old=new; a ``DeprecationWarning`` names the new one."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> T:
            for old in names.keys() & options.keys():
                message = f"{function.__name__}({old}=...): {old} is now called {names[old]}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                options.setdefault(names[old], options.pop(old))
            return function(*args, **options)

        return call

    return decorated


def takes_workload_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function also take fields of a ``Workload``; a ``DeprecationWarning`` says where they go."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        fields = {name: options.pop(name) for name in _FIELDS if name in options}
        if fields:
            from cdmpp.network.workload import Workload

            names = ", ".join(f"{name}=..." for name in fields)
            warnings.warn(
                f"{function.__name__}({names}): give cdmpp.Workload(network, {names}) in place of the network",
                DeprecationWarning, stacklevel=2,
            )  # fmt: skip
            mode = "forward_backward" if fields.pop("train", False) else "inference"
            given = {name: options.pop(name) for name in ("network", "example_inputs") if name in options}
            args = (Workload(*args, **(given | fields | {"mode": mode})),)
        return function(*args, **options)

    return call
