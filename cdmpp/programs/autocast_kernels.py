"""Autocast's rules of a GPU for tensors of a CPU, on which graphs are traced that a GPU will run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from cdmpp.programs.casts import CastLog, autocast_on


class _Rule(NamedTuple):
    """This is what autocast does before an operator with arguments of certain types."""

    casts: frozenset[int]
    """Places of the tensors, among all values it is given, that are cast."""
    dtype: Any
    """Type to which they are cast, or in which the operator is asked to compute; None: as without autocast."""


@contextmanager
def gpu_rules() -> Iterator[None]:
    """Let regions of autocast for CPUs cast as those for GPUs do: each operator asks torch's dispatcher what that is.

    The rules are read from torch: an operator with a rule for GPUs is run once without values, on a GPU that is not
    there, for each combination of types. What has a rule for CPUs only has none inside.
    """
    import torch

    names = {key: _registered(f"Autocast{key}") for key in ("CPU", "CUDA")}
    library, rules = torch.library.Library("aten", "IMPL"), dict[Any, _Rule]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is overridden
            for name in sorted(names["CPU"] | names["CUDA"]):
                operator, _, overload = name.partition(".")
                target = getattr(getattr(torch.ops.aten, operator), overload or "default")
                kernel = _kernel(target, rules) if name in names["CUDA"] else torch.library.fallthrough_kernel
                library.impl(name, kernel, "AutocastCPU", allow_override=True)
        yield
    finally:
        library._destroy()


def _registered(key: str) -> set[str]:
    import torch

    every = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in every if name.startswith("aten::")}


def _kernel(target: Any, rules: dict[Any, _Rule]) -> Callable[..., Any]:
    """Make the kernel of an operator that casts what the rule says, and runs the operator without autocast."""
    import torch
    from torch.utils import _pytree

    own = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    names = [argument.name for argument in target._schema.arguments]
    place_of_type = names.index("dtype") if "dtype" in names else None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = _pytree.tree_flatten((args, kwargs))
        wanted = torch.get_autocast_dtype("cpu")
        types = tuple(one.dtype if isinstance(one, torch.Tensor) else type(one) for one in leaves)
        key = target, types, wanted
        if key not in rules:
            rules[key] = _asked(target, leaves, structure, wanted)
        rule = rules[key]
        with torch._C._ExcludeDispatchKeyGuard(own):
            leaves = [one.to(rule.dtype) if place in rule.casts else one for place, one in enumerate(leaves)]
            args, kwargs = _pytree.tree_unflatten(leaves, structure)
            if rule.dtype is not None and not rule.casts and place_of_type is not None:
                if len(args) > place_of_type:
                    args = (*args[:place_of_type], rule.dtype, *args[place_of_type + 1 :])
                else:
                    kwargs = {**kwargs, "dtype": rule.dtype}
            return target(*args, **kwargs)

    return kernel


def _asked(target: Any, leaves: list[Any], structure: Any, wanted: Any) -> _Rule:
    """Run an operator on a GPU without values, with and without autocast."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _pytree
    from torch.utils._python_dispatch import _disable_current_modes

    with ExitStack() as stack:
        for one in (_disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.no_grad(), FakeTensorMode()):
            stack.enter_context(one)
        moved = [_on_gpu(one) for one in leaves]
        args, kwargs = _pytree.tree_unflatten(moved, structure)
        plain, log, before = CastLog(), CastLog(), None
        with suppress(RuntimeError, TypeError), plain:  # without autocast it may refuse types
            before = _type(target(*args, **kwargs))
        with autocast_on("cuda", wanted), log:
            after = _type(target(*args, **kwargs))
    own = {key: dtype for key, dtype in log.types.items() if plain.types.get(key) is not dtype}
    dtype = next(iter(own.values()), None)
    if dtype is not None or after is before:
        return _Rule(frozenset(place for place, one in enumerate(moved) if own.get(id(one), ...) is dtype), dtype)
    if "dtype" in {argument.name for argument in target._schema.arguments}:
        return _Rule(frozenset(), after)
    floats = (place for place, one in enumerate(moved) if isinstance(one, torch.Tensor) and one.is_floating_point())
    return _Rule(frozenset(floats), after)  # it calls another operator, which takes the type


def _type(result: Any) -> Any:
    first = result[0] if isinstance(result, tuple | list) else result
    return getattr(first, "dtype", None)


def _on_gpu(value: Any) -> Any:
    import torch

    if isinstance(value, torch.device):
        return torch.device("cuda", 0)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device="cuda")
