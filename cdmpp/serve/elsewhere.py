"""Some things stay at the server: the network that plans are made of, and the links between ranks.

A client has results, not what they were worked out from. Who asks for more is told where to ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from cdmpp.errors import CdmppError


@dataclass(frozen=True)
class Elsewhere:
    """It stands for a part of a result that stays at the server."""

    what: str
    """A few words for it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse: it is not here."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CdmppError(
            f"{self.what} of this result stayed at the server: ask it for the plan that you want, by strategies or top"
        )


_WORDS = {
    "source": "the network", "topology": "the links", "rules": "the rules", "memory_bytes": "the memory rules",
    "refusal": "the reason against a degree",
}  # fmt: skip
"""Field of a question or of its plans -> what it is to a reader."""


def stand_in(owner: Any, name: str, value: Any) -> Any:
    """Return what is sent of a field: the value, or what stands for it where it is no data."""
    if name in _WORDS and value is not None and _stays(owner, value):
        return Elsewhere(_WORDS[name])
    if name == "_judged":
        return {}
    return value


def _stays(owner: Any, value: Any) -> bool:
    from cdmpp.plans.sources.source import StepSource

    is_of_plans = type(owner).__name__ in ("Question", "UnlikeQuestion", "Candidates")
    return is_of_plans and (callable(value) or isinstance(value, StepSource))
