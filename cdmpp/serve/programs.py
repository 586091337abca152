"""Latencies of programs, for several requests at once: one pass of the model for all that are of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UsageError
from cdmpp.operators.operator import EagerOperator
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.model_folder import shared
from cdmpp.predict.prediction import Prediction
from cdmpp.report.programs import programs_report
from cdmpp.serve.question import Answered


def answers(each: Sequence[Mapping[str, Any]], folder: Path) -> list[Answered | CdmppError]:
    """Answer requests of ``predict``; the errors of some are among the answers.

    Args:
        each: fields of the requests, which are of one ``batch_key``; one by itself may have programs of any kind.
        folder: an empty one, for what is read as a file alone.
    """
    if "operators" not in each[0]["programs"]:
        return [_answer_alone(each[0], folder)]
    calls = [_calls(one) for one in each]
    joined = [call for own in calls if not isinstance(own, CdmppError) for call in own]
    try:
        name = _model(each[0], EAGER_FEATURES)
        whole = _predict(each[0], name, joined) if joined else None
    except CdmppError as error:
        return [own if isinstance(own, CdmppError) else error for own in calls]
    return list(_parts(whole, calls, name))


def _parts(
    whole: Prediction | None, calls: Sequence[list[EagerOperator] | CdmppError], name: str
) -> Iterator[Answered | CdmppError]:
    """Yield to each request what is its own."""
    begin = 0
    for own in calls:
        if whole is None or isinstance(own, CdmppError):
            yield own if isinstance(own, CdmppError) else CdmppError("there is no program to predict")
            continue
        part = whole.part(begin, begin + len(own))
        begin += len(own)
        yield Answered(part, {"": programs_report(part, name)})


def _calls(asked: Mapping[str, Any]) -> list[EagerOperator] | CdmppError:
    """The calls that a request names, or why they cannot be."""
    try:
        if asked.get("retarget"):
            raise UsageError("retarget is of schedules alone: framework operators have no target")
        return [_operator(one) for one in asked["programs"]["operators"]]
    except CdmppError as error:
        return error


def _operator(one: Mapping[str, Any]) -> EagerOperator:
    sizes, dtype = one["sizes"], one.get("dtype", "float32")
    if isinstance(sizes, str):
        return EagerOperator.parse(one["name"], sizes, dtype)
    return EagerOperator(one["name"], sizes, dtype, one.get("elements", 0), tuple(one.get("reads", ())))


def _answer_alone(asked: Mapping[str, Any], folder: Path) -> Answered | CdmppError:
    try:
        name, given = _model(asked, "cdmpp"), asked["programs"]
        programs = _script(given, folder) if "script" in given else _restored(given, devices.get(asked["device"]))
        found = _predict(asked, name, programs)
        return Answered(found, {"": programs_report(found, name)})
    except CdmppError as error:
        return error


def _predict(asked: Mapping[str, Any], name: str, programs: Any) -> Prediction:
    compiled, retarget = asked.get("compiled"), asked.get("retarget", False)
    return shared(name).predict(programs, device=_device(asked), compiled=compiled, retarget=retarget)


def _script(programs: Mapping[str, Any], folder: Path) -> Path:
    """Write TVMScript where the gate reads it, as it reads the file of a user."""
    path = folder / "programs.py"
    path.write_bytes(programs["script"].encode("utf-8", "replace"))
    return path


def _restored(programs: Mapping[str, Any], device: Device) -> list[Any]:
    """Restore programs of TVM's JSON, through the gate."""
    try:
        from cdmpp.programs.gate import load_graph
        from cdmpp.programs.replay import parse_target
        from cdmpp.programs.task import Program
    except ImportError as error:
        raise CdmppError(f"this server reads no IR: TVM is not installed there ({error})") from error
    texts, target = programs["tvm_json"], parse_target(device.target)
    names = programs.get("names") or [f"#{place}" for place in range(len(texts))]
    if len(names) != len(texts):
        raise UsageError(f"{len(names)} names of {len(texts)} programs: give one for each")
    return [Program(load_graph(text, name), target, name=name) for text, name in zip(texts, names, strict=True)]


def _device(asked: Mapping[str, Any]) -> str | Device:
    name, clock = asked["device"], asked.get("clock_mhz")
    return str(name) if clock is None else devices.get(name).with_spec(clock_mhz=clock)


def _model(asked: Mapping[str, Any], features: str) -> str:
    return str(asked.get("model") or _default_model(asked["device"], features))


@lru_cache(maxsize=256)
def _default_model(device: str, features: str) -> str:
    return model_for(device, models(), features).name
