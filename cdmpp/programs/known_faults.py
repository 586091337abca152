"""Operators that TVM imports as others: what ``benchmarks.importers`` found by running them, as a table.

``wrong_in_tvm.json`` names the version of TVM and lists, for each source, operators with the settings under which their
results have other values than the source defines. Those whose work is another too are refused; those that do the same
work are answered, since their time is the same.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("wrong_in_tvm.json")
Facts = Mapping[str, Any]
"""Attributes of a node by name; ``rank``, ``shape`` and ``dtype`` of its first input; what else its source tells."""
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda value, wanted: value in wanted,
    "is_not": lambda value, wanted: value not in wanted,
    "least": lambda value, wanted: value is not None and value >= wanted,
    "most": lambda value, wanted: value is not None and value <= wanted,
    "holds_not": lambda value, wanted: value is not None and any(one != wanted for one in _numbers(value)),
    "holds_below": lambda value, wanted: value is not None and any(one < wanted for one in _numbers(value)),
}
"""Name of a condition -> test of (value of a fact, wanted value)."""


@dataclass(frozen=True)
class KnownFault:
    """TVM imports this operator wrongly under these settings."""

    source: str
    """``onnx`` or ``torch``."""
    operator: str
    where: tuple[tuple[str, str, Any], ...]
    """(fact, condition, value); all must hold."""
    what: str
    """The meaning that TVM gives it instead, in a sentence."""
    same_work: bool
    """True if the time is that of the right operator, so that it is answered."""

    def covers(self, facts: Facts) -> bool:
        """Return True if a node with these facts has the fault."""
        return all(_HOLDS[condition](facts.get(fact), value) for fact, condition, value in self.where)

    @property
    def setting(self) -> str:
        """Put the conditions in words; empty where it is wrong under all settings."""
        words = {"is": "=", "is_not": "other than", "least": ">=", "most": "<="}
        words |= {"holds_not": "with numbers other than", "holds_below": "with numbers below"}
        return ", ".join(
            f"{fact} {words[how]} {' or '.join(map(str, value)) if isinstance(value, list) else value}"
            for fact, how, value in self.where
        )


@cache
def known_faults(table: Path = TABLE) -> tuple[KnownFault, ...]:
    """Return all of them, where the installed TVM is the version that they were found with; none for another."""
    stored = json.loads(table.read_text(encoding="utf-8"))
    if importlib.metadata.version("apache-tvm") != stored["tvm"]:
        return ()
    return tuple(
        KnownFault(one["source"], one["operator"], tuple(map(tuple, one["where"])), one["what"], one["same_work"])
        for one in stored["faults"]
    )


def refused_fault(source: str, operator: str, facts: Facts) -> str:
    """Say why a node is refused, in words that follow its name; empty where it is not refused."""
    for fault in known_faults():
        if (fault.source, fault.operator, fault.same_work) == (source, operator, False) and fault.covers(facts):
            version, setting = importlib.metadata.version("apache-tvm"), fault.setting
            return f"is another one in TVM {version}{f' with {setting}' if setting else ''}: {fault.what}"
    return ""


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [one for part in value for one in _numbers(part)]
    return [value] if isinstance(value, int | float) else []
