"""Settings of a workload as keywords of a function, as version 0.1 began with; they go with the next version."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_FIELDS = ("batch", "inputs", "dtype", "precision", "loss", "target", "optimizer", "train")


def takes_workload_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function also take fields of a ``Workload``; a ``DeprecationWarning`` says where they go."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        fields = {name: options.pop(name) for name in _FIELDS if name in options}
        if fields:
            from cdmpp.network.workload import Workload

            if "dtype" in fields:
                fields["precision"] = fields.pop("dtype")
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
