"""Reads of networks as plain values, as JSON has them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.plain_graph import restored_graph
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import OperatorTasks


def plain_read(read: EagerNetwork) -> dict[str, Any]:
    """Return a run as plain values, as JSON has them: in their order, on which the last digit of an answer depends."""
    return {
        **{name: getattr(read, name) for name in _PLAIN},
        "graph": asdict(replace(read.graph, tasks={})),  # they follow from the operators
        "operators": [[key, asdict(one)] for key, one in read.operators.items()],
        "stand_ins": list(read.stand_ins.items()),
    }


_PLAIN = ("batch", "warnings", "precision", "alive_bytes", "tokens", "cache_bytes", "trains")


def restored_read(stored: Mapping[str, Any], operators: Mapping[str, EagerOperator] | None = None) -> EagerNetwork:
    """Return the run that ``plain_read`` made plain; ``CdmppError`` or a built-in error of values that are none.

    ``operators``: in place of those that are stored.
    """
    if operators is None:
        operators = {key: restored_operator(one) for key, one in stored["operators"]}
    graph = restored_graph(stored["graph"])
    own = {
        "warnings": tuple(stored["warnings"]),
        "graph": replace(graph, tasks=OperatorTasks(operators, graph.name)),
        "operators": operators,
        "stand_ins": dict(stored["stand_ins"]),
    }
    return EagerNetwork(**{**stored, **own})


def restored_operator(stored: Mapping[str, Any]) -> EagerOperator:
    """Return an operator that was made plain; errors as of ``restored_read``."""
    return EagerOperator(**{**stored, "reads": tuple(stored["reads"])})
