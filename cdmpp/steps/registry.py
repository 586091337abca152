"""Registry: the kinds of one thing by name, such as parallel strategies. A kind is one file of a folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError
from cdmpp.model.config import config_from_dict
from cdmpp.platform.limits import fitting


class _Named(Protocol):
    name: ClassVar[str]


Kind = TypeVar("Kind", bound=_Named)


class Registry(Generic[Kind]):
    """It keeps frozen dataclasses by their ``name``, in the order of their files."""

    def __init__(self, what: str) -> None:
        self.what = what
        """The word for a registered thing, used in messages."""
        self._kinds: dict[str, type[Kind]] = {}

    def register(self, kind: type[Kind]) -> type[Kind]:
        """Add a kind; a decorator of its class."""
        self._kinds[kind.name] = kind
        return kind

    def remove(self, name: str) -> None:
        """Take a kind out again."""
        del self._kinds[name]

    def load(self, package: str, paths: list[str]) -> None:
        """Import every module of a package, each of which registers its kind."""
        for module in pkgutil.iter_modules(paths):
            importlib.import_module(f"{package}.{module.name}")

    def __iter__(self) -> Iterator[type[Kind]]:
        return iter(self._kinds.values())

    def __getitem__(self, name: str) -> type[Kind]:
        """The kind of a name; ``CdmppError`` names the nearest ones where there is none."""
        if name not in self._kinds:
            raise CdmppError(f"unknown {self.what} {name!r}; {nearest(str(name), list(self._kinds))}")
        return self._kinds[name]

    def from_dict(self, values: Any, group: str) -> Kind:
        """Make the kind that ``to_dict`` wrote; a bare name: its defaults. ``CdmppError``: unknown name, key, value."""
        values = {"name": values} if isinstance(values, str) else dict(fitting(group, values, Mapping))
        kind = self[fitting(f"{group}.name", values.pop("name", None), str)]
        return config_from_dict(kind, values, group)


def to_dict(kind: Any) -> dict[str, Any]:
    """Return name and settings as plain values, lists for tuples."""
    return {"name": kind.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in asdict(kind).items()}}
