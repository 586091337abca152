"""Caches of keys and values of transformers as trees of tensors, so that an export has them as inputs and outputs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


def register_caches() -> None:
    """Tell torch what tensors are in each kind of cache of transformers; nothing where it is not imported.

    transformers registers one kind of its own accord, when asked, and puts its tensors back by copying them.
    """
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None:
        return
    from torch.utils import _pytree

    for kind in _kinds(caches.Cache):
        with suppress(ValueError):  # it is registered already
            _pytree.register_pytree_node(
                kind,
                _tensors,
                _together,
                serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
                flatten_with_keys_fn=_with_keys,
            )


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)


@dataclass(frozen=True)
class _Layout:
    """A cache without its tensors; equal to another one whose tensors have the same places."""

    keys: tuple[str, ...]
    skeleton: Any = field(compare=False)


@dataclass(frozen=True)
class _Place:
    """The place of a tensor among those of its cache."""

    number: int


def _apart(cache: Any) -> tuple[list[Any], list[str], _Layout]:
    tensors, keys = list[Any](), list[str]()

    def apart(value: Any, key: str) -> Any:
        if hasattr(value, "numel") and hasattr(value, "dtype"):
            tensors.append(value)
            keys.append(key)
            return _Place(len(tensors) - 1)
        return _rebuilt(value, key, apart)

    skeleton = apart(cache, "")
    return tensors, keys, _Layout(tuple(keys), skeleton)


def _tensors(cache: Any) -> tuple[list[Any], _Layout]:
    tensors, _, layout = _apart(cache)
    return tensors, layout


def _with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], _Layout]:
    from torch.utils._pytree import MappingKey

    tensors, keys, layout = _apart(cache)
    return [(MappingKey(key), one) for key, one in zip(keys, tensors, strict=True)], layout


def _together(tensors: Any, layout: _Layout) -> Any:
    values = list(tensors)

    def together(value: Any, key: str) -> Any:
        return values[value.number] if isinstance(value, _Place) else _rebuilt(value, key, together)

    return together(layout.skeleton, "")


def _rebuilt(value: Any, key: str, change: Any) -> Any:
    """A copy whose parts are changed; what has an underscore before its name belongs to the cache's own bookkeeping."""
    if isinstance(value, list | tuple):
        return type(value)([change(one, f"{key}.{place}") for place, one in enumerate(value)])
    if isinstance(value, dict):
        return {name: change(one, f"{key}.{name}") for name, one in value.items()}
    if not type(value).__module__.startswith("transformers.") or not hasattr(value, "__dict__"):
        return value
    made = copy.copy(value)
    for name, one in vars(value).items():
        if not name.startswith("_"):
            vars(made)[name] = change(one, f"{key}.{name}")
        elif hasattr(one, "fake_mode"):  # an export copies what is left, which its own tensors refuse
            vars(made)[name] = None
    return made
