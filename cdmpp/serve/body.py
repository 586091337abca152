"""Bodies of requests: JSON as the standard has it."""

from __future__ import annotations

from typing import Any, NoReturn

from cdmpp.platform.content import parse_json

_MOST_DEPTH = 64
"""Most lists and objects inside each other; questions have up to eight."""


def parsed(body: bytes) -> dict[str, Any]:
    """Parse a body, an object; ``ValueError``: it is none, nested too deep, has NaN or infinity, or a key twice."""
    value = parse_json(body, _no_number)
    if not isinstance(value, dict):
        raise ValueError('expected an object, such as {"device": ...}')
    if _is_deeper(value, _MOST_DEPTH):
        raise ValueError(f"nested more than {_MOST_DEPTH} deep")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _is_deeper(value: Any, most: int) -> bool:
    """Return True if lists and objects stand more than ``most`` deep in ``value``."""
    level = [value]
    for _ in range(most):
        level = [one for each in level for one in (each.values() if isinstance(each, dict) else each)
                 if isinstance(one, dict | list)]  # fmt: skip
        if not level:
            return False
    return True
