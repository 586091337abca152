"""From a request to its answer, in a worker process: the objects and reports that the command line has, too.

What types and names refuse never comes here: see ``request`` and ``names``.
"""

from __future__ import annotations

import base64
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.errors import UsageError
from cdmpp.network.predict import predict_network, predict_read, predict_step, runtime_of
from cdmpp.network.update import Update
from cdmpp.network.workload import Workload
from cdmpp.plans.refine import refine
from cdmpp.plans.search_plans import search_plans
from cdmpp.report.network import network_report
from cdmpp.report.oracle import oracle_report
from cdmpp.report.plan import plan_report
from cdmpp.report.replay import replay_report
from cdmpp.report.report import Report
from cdmpp.report.step import step_report
from cdmpp.serve.ranks import plan_of, replayed

_FIELDS = frozenset(one.name for one in fields(Workload))
_OF_STORED = {"network", "device", "runtime", "model", "schedule", "cuda_graphs"}
"""Fields that go with a stored graph."""


@dataclass(frozen=True)
class Answered:
    """A question gave the object that the package returns, and its reports."""

    found: Any
    reports: Mapping[str, Report]
    """By their keys in the JSON."""
    others_lead: bool = False
    """True if on a page the report of the empty key stands below the others."""

    @property
    def shown(self) -> list[Report]:
        """Return the reports as a page has them."""
        first, *others = self.reports.values()
        return [*others, first] if self.others_lead else [first, *others]


def answer(verb: str, asked: Mapping[str, Any], folder: Path) -> Answered:
    """Answer for a network, a step or a plan.

    Args:
        verb: ``network``, ``step`` or ``plan``.
        asked: fields of its request.
        folder: an empty one, for what libraries read as files alone.

    Raises:
        CdmppError: as of the package's function.
    """
    return {"network": _network, "step": _step, "plan": _plan}[verb](asked, folder)


def _network(asked: Mapping[str, Any], folder: Path) -> Answered:
    runtime, given = _runtime(asked), asked["network"]
    if isinstance(given, Mapping) and "graph" in given:
        found = predict_read(_stored(asked), devices.get(asked["device"]), runtime, progress=False)
    else:
        workload = _workload(asked, asked.get("mode", "inference"), folder)
        found = predict_network(workload, asked["device"], runtime, progress=False)
    return Answered(found, {"": network_report(found)})


def _step(asked: Mapping[str, Any], folder: Path) -> Answered:
    workload, runtime = _workload(asked, "training_step", folder), _runtime(asked)
    if (plan := plan_of(asked)) is not None:
        step, made = replayed(asked, workload, plan, runtime, asked.get("runtime", "tvm"))
        return Answered(made, {"": step_report(step, is_part=True), "replay": replay_report(made)}, others_lead=True)
    found = predict_step(workload, asked["device"], runtime, progress=False)
    return Answered(found, {"": step_report(found)})


def _plan(asked: Mapping[str, Any], folder: Path) -> Answered:
    workload = _workload(asked, "training_step", folder)
    own = {name: value for name, value in asked.items() if name not in _FIELDS}
    found = search_plans(workload, own.pop("device"), **own)
    settings = refine(found.question, found.best.plan, workload.update.word, workload.precision)  # type: ignore[arg-type]
    return Answered(found, {"": oracle_report(found), "optimized": plan_report(settings, found.best.words)})


def _runtime(asked: Mapping[str, Any]) -> Any:
    own = {name: asked[name] for name in ("model", "schedule", "fallback", "cuda_graphs") if name in asked}
    return runtime_of(asked.get("runtime", "tvm"), **own)


def _workload(asked: Mapping[str, Any], mode: str, folder: Path) -> Workload:
    given = {name: value for name, value in asked.items() if name in _FIELDS}
    if isinstance(network := given["network"], Mapping):
        if "graph" in network:
            raise UsageError("a stored graph is of one run: ask for network; steps and plans take names and ONNX")
        given["network"] = _onnx_file(network, folder)
    if isinstance(update := given.get("optimizer"), Mapping):
        given["optimizer"] = Update(**update)
    return Workload(**{**given, "mode": mode})


def _onnx_file(network: Mapping[str, str], folder: Path) -> Path:
    """Write the bytes of an ONNX file that holds all of it."""
    from cdmpp.network.source.onnx_file import check_whole

    content, path = base64.b64decode(network["onnx"]), folder / network.get("name", "model.onnx")
    check_whole(path.name, content)
    path.write_bytes(content)
    return path


def _stored(asked: Mapping[str, Any]) -> Any:
    from cdmpp.network.compiled.stored_graph import network_of_graph

    if asked.get("runtime", "tvm") != "tvm":
        raise UsageError("a stored graph has TVM's programs: ask with runtime tvm")
    if other := sorted(asked.keys() - _OF_STORED):
        raise UsageError(f"{other[0]} does not go with a stored graph, which has its sizes and types")
    return network_of_graph(asked["network"]["graph"], asked["network"]["batch"])


@contextmanager
def own_folder(scratch: Path) -> Iterator[Path]:
    """Give an empty folder in ``scratch``, and remove it."""
    folder = scratch / secrets.token_hex(8)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def without_places(text: str, scratch: Path) -> str:
    """Leave out of a message where ``scratch`` and the folders in it are."""
    places = "|".join(re.escape(one) for one in sorted({str(scratch), str(scratch.resolve())}, key=len, reverse=True))
    return re.sub(rf"(?:{places})(?:/[0-9a-f]{{16}})?/?", "", text)
