"""Synchronies by name: each class of ``cdmpp/synchrony/policies`` registers itself here, and text names them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from cdmpp.devices.sheet import nearest
from cdmpp.errors import UsageError
from cdmpp.platform.limits import hints_of
from cdmpp.steps.registry import Registry
from cdmpp.steps.synchrony import Synchrony

SYNCHRONIES: Registry[Synchrony] = Registry("synchrony")
_WORDS = {"true": True, "false": False, "none": None}


def synchrony_of(text: str) -> Synchrony:
    """Read ``NAME`` or ``NAME:SETTINGS``, such as ``ssp:4`` or ``adsp:commits_per_check=4,least_s=1``.

    Settings are ``KEY=VALUE`` with commas between them; the first one may be a value only, of the first setting.

    Raises:
        CdmppError: an unknown name or setting, a value that is none or cannot be, and settings for a kind without any.
    """
    name, colon, rest = text.partition(":")
    kind = SYNCHRONIES[name]
    if not colon:
        return kind()
    known = [one.name for one in fields(kind)]
    if not known:
        raise UsageError(f"synchrony {text!r}: {name} has no settings; give {name}")
    given: dict[str, Any] = {}
    for place, part in enumerate(rest.split(",")):
        key, equals, value = part.strip().partition("=")
        if not equals:
            if place:
                raise UsageError(
                    f"synchrony {text!r}: {part!r} is no setting; expected KEY=VALUE, KEY one of {', '.join(known)}"
                )
            key, value = known[0], key
        if key not in known:
            raise UsageError(f"synchrony {text!r}: {name} has no setting {key!r}; {nearest(key, known)}")
        if key in given:
            raise UsageError(f"synchrony {text!r}: {key} is given twice; give it once")
        given[key] = _value(text, kind, key, value)
    return kind(**given)


def listed(text: str) -> list[str]:
    """Divide a list of synchronies at its commas; those between the settings of one stay: ``adsp:4,least_s=1,bsp``."""
    found: list[str] = []
    for part in (one.strip() for one in text.split(",")):
        if found and ":" in found[-1] and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _value(text: str, kind: type[Synchrony], key: str, value: str) -> Any:
    hint = hints_of(kind)[key]
    kinds = get_args(hint) or (hint,)
    word = _WORDS.get(value.lower(), value)
    if word is not value and type(word) in kinds:
        return word
    try:
        if bool in kinds:
            raise ValueError
        return int(value) if int in kinds else float(value)
    except ValueError:
        expected = "true or false" if bool in kinds else "a whole number" if int in kinds else "a number"
        raise UsageError(f"synchrony {text!r}: {kind.name}.{key} is {value!r}: expected {expected}") from None
