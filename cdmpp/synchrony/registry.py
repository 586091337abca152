"""SYNCHRONIES: the kinds of synchronisation that are known, and how a command line names one."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from cdmpp.errors import UsageError
from cdmpp.platform.limits import hints_of
from cdmpp.steps.registry import Registry
from cdmpp.steps.synchrony import Synchrony

SYNCHRONIES: Registry[Synchrony] = Registry("synchrony")


def synchrony_of(text: str) -> Synchrony:
    """Read ``NAME`` or ``NAME:NUMBER``, such as ``ssp:4``; the number is that of the first setting.

    Raises:
        CdmppError: an unknown name, a number that is none or cannot be, and a number for a kind without settings.
    """
    name, colon, number = text.partition(":")
    kind = SYNCHRONIES[name]
    if not colon:
        return kind()
    if not fields(kind):
        raise UsageError(f"synchrony {text!r}: {name} has no settings; give {name}")
    first = fields(kind)[0].name
    try:
        hint = hints_of(kind)[first]
        value = int(number) if int in (hint, *get_args(hint)) else float(number)
    except ValueError:
        raise UsageError(f"synchrony {text!r}: {name}.{first} is {number!r}: expected a number") from None
    return kind(**{first: value})
