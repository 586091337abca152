"""Old names of parts and settings of a model, which stored weights and configurations may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cdmpp.errors import CdmppError

_PARTS: Mapping[str, str] = {"anchor": "prior", "code_anchor": "code_prior"}
"""Old name -> name."""
T = TypeVar("T")


def current_names(values: Mapping[str, T]) -> dict[str, T]:
    """Give ``values`` their names of today, such as ``members.0.prior.known`` for ``members.0.anchor.known``.

    ``CdmppError`` where something is there under both names.
    """
    found = {}
    for name, value in values.items():
        new = ".".join(_PARTS.get(part, part) for part in str(name).split("."))
        if new in found:
            raise CdmppError(f"{new} is there under its old name, too: leave one out")
        found[new] = value
    return found
