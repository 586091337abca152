"""Requests: every argument of the package's functions, and no field more."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

import cdmpp
from cdmpp.network.workload import Workload
from cdmpp.serve.client import RemoteServer
from cdmpp.serve.ranks import OF_RANKS
from cdmpp.serve.request import NOT_TAKEN, REQUESTS, meanings

OF_THE_CALLER = {"network", "example_inputs", "measure", "progress"}
"""Arguments that say what happens on the machine of the caller, and the network itself."""
OF_SEVERAL = {"ranks", *OF_RANKS}
"""Fields of a step on several devices."""
FUNCTIONS = {"network": "predict_network", "step": "predict_step", "plan": "search_plans"}


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_every_argument_of_a_function_is_asked_for(verb):
    own = set(inspect.signature(getattr(cdmpp, FUNCTIONS[verb])).parameters) - OF_THE_CALLER
    asked = set(REQUESTS[verb].model_fields) - {one.name for one in fields(Workload)}
    assert asked == own | (OF_SEVERAL if verb == "step" else set())
    client = set(inspect.signature(getattr(RemoteServer, FUNCTIONS[verb])).parameters) - {"self", "network"}
    assert client == own


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_every_field_of_a_workload_is_asked_for(verb):
    taken = {one.name for one in fields(Workload)} - set(NOT_TAKEN)
    assert taken <= set(REQUESTS[verb].model_fields)
    assert all(REQUESTS[verb].model_fields[name].description for name in taken)


def test_a_step_on_ranks_is_asked_for_with_every_argument_of_its_function():
    own = set(inspect.signature(cdmpp.replay_step).parameters) - {"step", "plan"}
    assert own <= OF_SEVERAL
    client = set(inspect.signature(RemoteServer.replay_step).parameters) - {"self", "network"}
    one = set(inspect.signature(RemoteServer.predict_step).parameters) - {"self", "network", "cuda_graphs"}
    assert client == OF_SEVERAL - {"settings"} | one  # which stand in the strategy itself


def test_defaults_are_those_of_the_functions():
    for verb, name in FUNCTIONS.items():
        signature = inspect.signature(getattr(cdmpp, name)).parameters
        for field, one in REQUESTS[verb].model_fields.items():
            if field in signature and field != "network" and not one.is_required():
                default = signature[field].default
                assert one.default == (list(default) if isinstance(default, tuple) else default), (verb, field)


def test_meanings_are_those_of_the_docstring():
    assert meanings(Workload)["batch"].startswith("examples in one run, the first dimension of the inputs")


GOOD: dict[str, dict[str, Any]] = {
    "predict": {"device": "a100", "programs": {"operators": [{"name": "linear", "sizes": "8x8x8"}]}},
    "network": {"network": "bert_tiny", "device": "a100", "runtime": "torch"},
    "step": {"network": "bert_tiny", "device": "a100", "runtime": "torch", "optimizer": {"optimizer": "adamw"}},
    "plan": {"network": "bert_tiny", "device": "a100", "ranks": 2, "link": "nvlink3", "global_batch": 8},
}
ODD: tuple[Any, ...] = (float("nan"), float("inf"), [[]], {"x": {}}, b"x", object())


@pytest.mark.parametrize("verb", GOOD)
def test_every_field_has_a_type(verb):
    REQUESTS[verb].model_validate(GOOD[verb])
    for name in REQUESTS[verb].model_fields:
        for value in ODD:
            with pytest.raises(ValidationError):
                REQUESTS[verb].model_validate({**GOOD[verb], name: value})


@pytest.mark.parametrize("verb", GOOD)
def test_unknown_fields_are_refused(verb):
    for name in ("example_inputs", "target", "progress", "measure", "__class__", "path"):
        with pytest.raises(ValidationError, match="Extra inputs"):
            REQUESTS[verb].model_validate({**GOOD[verb], name: None})


@pytest.mark.parametrize(
    "network",
    [
        {"onnx": "not base64!"}, {"onnx": "AAAA", "name": "../x.onnx"}, {"onnx": "AAAA", "name": "a/b.onnx"},
        {"onnx": "AAAA", "name": ".onnx"}, {"onnx": "AAAA", "name": "x.py"}, {"onnx": "AAAA", "path": "/x"}, {},
        {"graph": [], "batch": 1}, {"graph": {}, "batch": 0}, {"graph": {}, "batch": -1}, {"graph": {}}, 5, "x" * 201,
        {"graph": {}, "batch": True}, "",
    ],
)  # fmt: skip
def test_a_network_is_a_name_or_content(network):
    with pytest.raises(ValidationError):
        REQUESTS["network"].model_validate({**GOOD["network"], "network": network})
