"""Limits of settings and options: numbers in range, texts, lists without repeats. They are checked before any work."""

from __future__ import annotations

import argparse
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar

from cdmpp.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
_EXACT = 2**53
"""Above it a float does not hold every whole number."""


@dataclass(frozen=True)
class Limits:
    """A setting may have these numbers; calling it reads one from a command line, as ``type`` of ``argparse``."""

    least: float
    most: float
    unit: str = ""
    """Unit of the number, for messages."""
    whole: bool = True
    """Whole numbers only."""
    above: bool = False
    """``least`` itself is too little."""

    def __str__(self) -> str:
        what = f"a {'whole ' * self.whole}number {'above' if self.above else 'from'} {self.least:.12g}"
        return f"{what} to {self.most:.12g}" + (f" ({self.unit})" if self.unit else "")

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def fitting(self, name: str, value: Any) -> Any:
        """Return ``value`` where it may be, a float where numbers may be broken; ``UsageError`` says what may be."""
        allowed = (int,) if self.whole else (int, float)
        if type(value) not in allowed or value not in self:  # NaN is in no limits
            raise UsageError(f"{name} is {shown(value)}: expected {self}")
        return value if self.whole else float(value)

    def __call__(self, given: str) -> Any:
        """The number that ``given`` is; ``argparse.ArgumentTypeError`` where it may not be."""
        try:
            return self.fitting("it", int(given) if self.whole else float(given))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(given)} is given, expected {self}") from None


def numbers(least: float, most: float, unit: str = "", above: bool = False) -> Limits:
    """Make limits of numbers that need not be whole."""
    return Limits(least, most, unit, whole=False, above=above)


def text(given: str) -> str:
    """Read a name of a command line, as ``type`` of ``argparse``: an empty one is none."""
    try:
        return _text("it", given)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def path(given: str) -> Path:
    """Read a file or folder of a command line, as ``type`` of ``argparse``; empty would be the working folder."""
    return Path(text(given))


SEED = Limits(0, 2**32 - 1)
PROCESSES = Limits(1, 1024, "processes or threads")
SIZES = Limits(1, 2**31)
"""Dimensions of an input: torch and TVM count the elements of a tensor with 64 bits."""


def fitting(name: str, value: Any, hint: Any, limits: Limits | None = None) -> Any:
    """Return ``value`` as a setting of the type ``hint``: lists become tuples where it is one, whole numbers floats.

    ``UsageError`` for another type, a number beyond ``limits``, an empty text, and a list that says something twice.
    """
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union else (hint,)
    if value is None and NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    if len(kinds) == 1:
        return _fitting(name, value, kinds[0], limits)
    for kind in kinds:
        if isinstance(value, typing.get_origin(kind) or kind):
            return _fitting(name, value, kind, limits)
    raise UsageError(f"{name} is {shown(value)}: expected {' or '.join(map(_kind_named, kinds))}")


def _fitting(name: str, value: Any, kind: Any, limits: Limits | None) -> Any:
    origin = typing.get_origin(kind) or kind
    if origin is Any or origin is object or getattr(origin, "_is_protocol", False):
        return value
    if origin in (int, float):
        return (limits or Limits(-_EXACT, _EXACT, whole=origin is int)).fitting(name, value)
    if origin is str:
        return _text(name, value)
    if origin is Path:
        return Path(_text(name, str(value) if isinstance(value, Path) else value))
    if origin is typing.Literal:
        check_choice(name, value, typing.get_args(kind))
        return value
    if origin in (list, tuple, Sequence, Collection):
        return _fitting_list(name, value, kind, limits)
    _of(name, value, origin, _kind_named(origin))
    if issubclass(origin, Mapping):
        key_hint, item = typing.get_args(kind) or (Any, Any)
        for key, one in value.items():
            fitting(f"a key of {name}", key, key_hint)
            fitting(f"{name}[{shown(key)}]", one, item, limits)
    return value


def _fitting_list(name: str, value: Any, kind: Any, limits: Limits | None) -> Any:
    origin, item = typing.get_origin(kind) or kind, (typing.get_args(kind) or (str,))[0]
    if item is Any:
        if isinstance(value, str | Mapping):  # collections of letters, or of keys
            raise UsageError(f"{name} is {shown(value)}: expected a list, such as [A,B]")
        return _of(name, value, Collection, "a list")
    found = [fitting(f"{name}[{i}]", one, item, limits) for i, one in enumerate(_list(name, value))]
    if origin is tuple:  # a stack of layers, whose sizes may be alike
        return tuple(found)
    check_once(name, found)
    return found


def checked(**limits: Limits) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a public function: ``UsageError`` for an argument that is not ``fitting`` its type or its limits."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            hints = hints_of(function)
            for name, value in signature.bind(*args, **options).arguments.items():
                fitting(name, value, hints[name], limits.get(name))
            return function(*args, **options)

        return call

    return decorate


def fitting_values(
    values: Mapping[str, Any], hints: Mapping[str, Any], limits: Mapping[str, Limits], prefix: str = ""
) -> dict[str, Any]:
    """Take ``fitting`` of each of ``values``; ``prefix`` is put before their names."""
    return {key: fitting(f"{prefix}{key}", value, hints[key], limits.get(key)) for key, value in values.items()}


def check_fields(config: Any, prefix: str = "") -> None:
    """Raise ``UsageError`` for the first field not ``fitting`` its type and the dataclass's ``LIMITS``.

    A list becomes the tuple that its field is said to be, so that the object can be hashed.
    """
    for name, hint in hints_of(type(config)).items():
        given = getattr(config, name)
        found = fitting(f"{prefix}{name}", given, hint, getattr(config, "LIMITS", {}).get(name))
        if isinstance(given, list) and isinstance(found, tuple):
            object.__setattr__(config, name, found)


def check_all(name: str, values: Any, kind: type) -> None:
    """Raise ``UsageError`` where ``values`` are no list or tuple of ``kind``."""
    if odd := [one for one in _list(name, values) if not isinstance(one, kind)]:
        raise UsageError(f"{name} hold {shown(odd[0])}: expected a {kind.__name__} each")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ``UsageError`` where ``value`` is none of ``choices``."""
    if not any(type(value) is type(one) and value == one for one in choices):
        raise UsageError(
            f"{name} is {shown(value)}; one of {', '.join('null' if c is None else str(c) for c in choices)}"
        )


def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, or of the arguments of a function, by name."""
    return _hints_of(kind)


@cache
def _hints_of(kind: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if typing.ClassVar not in (hint, typing.get_origin(hint))}


def _list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} is {shown(value)}: expected a list, such as [A,B]")
    return value


def check_once(name: str, items: Sequence[Any]) -> None:
    """Raise ``UsageError`` for the first of ``items`` that is there twice."""
    if twice := [one for i, one in enumerate(items) if one in items[:i]]:
        raise UsageError(f"{name} says {shown(twice[0])} twice: name each once")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UsageError(f"{name} is {shown(value)}: expected a text in one line that is not empty")
    return value


def _kind_named(kind: Any) -> str:
    named = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    named |= dict.fromkeys((dict, Mapping), "keys with values")
    return named.get(kind, f"a {getattr(kind, '__name__', str(kind))}")


def _of(name: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {shown(value)}: expected {expected}")
    return value


def shown(value: Any) -> str:
    """Show ``value`` for a message, cut where it is long."""
    try:
        whole = repr(value)
    except ValueError:  # a whole number of thousands of digits
        whole = "a number of very many digits"
    return whole if len(whole) <= 60 else f"{whole[:57]}..."
