"""Stored read: the operators of a network of a name, as the package ships them: a question needs no export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import EagerNetwork
from cdmpp.network.network_key import digest, name_key, surroundings
from cdmpp.network.plain_graph import restored_graph
from cdmpp.network.precision import precision_of
from cdmpp.network.workload import Workload
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import OperatorTasks
from cdmpp.platform.cache import cached_json
from cdmpp.platform.paths import cache_root

_VERSION = "1"
"""Goes up when the same network gives other operators. What is read here is not kept: the shipped reads alone are, and
a test reads them again."""
_OF_RUN = ("batch", "sequence", "decoder_sequence", "past", "moe_imbalance", "attention", "boxes", "mode")
"""Fields of a workload that tell how a network of a name runs without a loss, but for shapes and the precision."""


def read_path(workload: Workload, place: str) -> Path | None:
    """Return the place in the cache of what ``read_run`` reads; None where a name does not say what that is."""
    content = name_key(workload.network)
    torch = sys.modules.get("torch")
    is_usual = torch is None or torch.get_default_dtype() == torch.float32
    if content is None or workload.example_inputs is not None or workload.mode == "training_step" or not is_usual:
        return None
    shapes = {name: list(shape) for name, shape in (workload.inputs or {}).items()}
    settings = [repr(getattr(workload, name)) for name in _OF_RUN]
    versions = surroundings(workload.network, by_tvm=False)
    asked = [content, settings, shapes, repr(precision_of(workload.precision)), place, versions]
    return cache_root() / "reads" / f"v{_VERSION}" / f"{digest(asked)}.json"


def stored_read(workload: Workload, place: str) -> EagerNetwork | None:
    """Return what ``read_run`` would, where it is shipped; None: it is not, or its file is damaged."""
    path = read_path(workload, place)
    if path is not None:
        with suppress(CdmppError, KeyError, TypeError, ValueError):
            return restored_read(cached_json(path))
    return None


def plain_read(read: EagerNetwork) -> dict[str, Any]:
    """Return a run as plain values, as JSON has them: in their order, on which the last digit of an answer depends."""
    return {
        **{name: getattr(read, name) for name in _PLAIN},
        "graph": asdict(replace(read.graph, tasks={})),  # they follow from the operators
        "operators": [[key, asdict(one)] for key, one in read.operators.items()],
        "stand_ins": list(read.stand_ins.items()),
    }


_PLAIN = ("batch", "warnings", "precision", "alive_bytes", "tokens", "cache_bytes", "trains")


def restored_read(stored: Mapping[str, Any]) -> EagerNetwork:
    """Return the run that ``plain_read`` made plain; ``CdmppError`` or a built-in error of values that are none."""
    operators, graph = {key: _operator(one) for key, one in stored["operators"]}, restored_graph(stored["graph"])
    own = {
        "warnings": tuple(stored["warnings"]),
        "graph": replace(graph, tasks=OperatorTasks(operators, graph.name)),
        "operators": operators,
        "stand_ins": dict(stored["stand_ins"]),
    }
    return EagerNetwork(**{**stored, **own})


def _operator(stored: Mapping[str, Any]) -> EagerOperator:
    return EagerOperator(**{**stored, "reads": tuple(stored["reads"])})
