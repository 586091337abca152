"""Results as JSON and back: the dataclasses of this package, field by field, for a client of the same version.

Every value that is no plain number, text or truth value is a list whose first element says what it is. Only types of
``_ROOMS`` are made again; nothing is unpickled.
"""

from __future__ import annotations

import base64
import importlib
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError, DataError

_ROOMS = tuple(
    f"cdmpp.{name}." for name in ("collectives", "devices", "network", "plans", "predict", "programs", "simulate",
                                  "steps", "synchrony.policies")
)  # fmt: skip
"""Packages whose types a result is made of."""
_ELSEWHERE = "cdmpp.serve.elsewhere"
"""Module of what stands for parts that stay at the server."""
_DTYPES = frozenset("?bBhHiIlLqQefd")
"""Kinds of numbers of an array."""


def to_wire(value: Any) -> dict[str, Any]:
    """Return ``value`` as JSON takes it; ``CdmppError`` for a type that no result has."""
    types: dict[str, int] = {}
    return {"value": _written(value, types), "types": list(types)}


def from_wire(stored: Mapping[str, Any]) -> Any:
    """Restore what ``to_wire`` made; ``DataError``: it is of another form."""
    try:
        types = [_type_of(name) for name in stored["types"]]
        return _restored(stored["value"], types)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise DataError(f"what the server sent cannot be restored: {type(error).__name__}: {error}") from error


def _written(value: Any, types: dict[str, int]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else ["f", repr(value)]
    if (letter := _PLAIN.get(kind)) is not None:
        return [letter, *(_written(one, types) for one in value)]
    if is_dataclass(value):
        return ["d", _number(kind, types), *(_written(one, types) for one in _values(value))]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # a NamedTuple
        return ["n", _number(kind, types), *(_written(one, types) for one in value)]
    if isinstance(value, Mapping):
        return ["m", *(_written(one, types) for pair in value.items() for one in pair)]
    if isinstance(value, np.generic):
        return _written(value.item(), types)
    if isinstance(value, np.ndarray) and value.dtype.char in _DTYPES:
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)).decode()
        return ["a", value.dtype.str, list(value.shape), packed]
    if isinstance(value, PurePath):
        return str(value)
    raise CdmppError(f"a {kind.__module__}.{kind.__qualname__} is no part of a result that can be sent")


_PLAIN: Mapping[Any, str] = {tuple: "t", list: "l", frozenset: "s"}
_MADE: Mapping[str, Callable[[Any], Any]] = {"t": tuple, "l": list, "s": frozenset}


def _values(value: Any) -> list[Any]:
    """The fields that a type is made of; of some other objects, what stands for them."""
    from cdmpp.serve.elsewhere import stand_in

    return [stand_in(value, one.name, getattr(value, one.name)) for one in fields(value) if one.init]


def _number(kind: type, types: dict[str, int]) -> int:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not (kind.__module__ + ".").startswith((*_ROOMS, _ELSEWHERE)):
        raise CdmppError(f"a {name} is no part of a result that can be sent")
    return types.setdefault(name, len(types))


def _type_of(name: str) -> type:
    module, _, kind = name.partition(":")
    if not (module + ".").startswith((*_ROOMS, _ELSEWHERE)):
        raise DataError(f"what the server sent holds a {name[:100]}, which is no part of a result")
    try:
        found = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise DataError(f"this version of cdmpp has no {name[:100]}: install that of the server") from error
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, tuple)):
        raise DataError(f"what the server sent holds a {name[:100]}, which is no part of a result")
    return found


def _restored(value: Any, types: list[type]) -> Any:
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "f":
        return float(parts[0])
    if kind == "a":
        return _array(*parts)
    if kind in ("d", "n"):
        made, given = types[parts[0]], [_restored(one, types) for one in parts[1:]]
        return made(*given) if kind == "n" else _dataclass(made, given)
    found = [_restored(one, types) for one in parts]
    if kind == "m":
        return dict(zip(found[::2], found[1::2], strict=True))
    return _MADE[kind](found)


def _dataclass(kind: type, given: list[Any]) -> Any:
    names = [one.name for one in fields(kind) if one.init]  # type: ignore[arg-type]
    return kind(**dict(zip(names, given, strict=True)))


def _array(dtype: str, shape: list[int], packed: str) -> Any:
    kind = np.dtype(dtype)
    if kind.char not in _DTYPES:
        raise DataError(f"what the server sent holds an array of {dtype!r}")
    content = zlib.decompressobj().decompress(base64.b64decode(packed), kind.itemsize * math.prod(shape) + 1)
    return np.frombuffer(content, kind).reshape(shape).copy()
