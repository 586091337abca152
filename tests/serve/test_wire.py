"""Results as JSON and back: the same object, to the last bit; and nothing but results."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

import cdmpp
from cdmpp.errors import CdmppError, DataError
from cdmpp.operators.operator import EagerOperator
from cdmpp.serve.wire import from_wire, to_wire


def sent(value: Any) -> Any:
    return from_wire(json.loads(json.dumps(to_wire(value), allow_nan=False)))


def same(one: Any, other: Any) -> bool:
    """Equal in all fields, arrays and NaN too."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, dict) or hasattr(one, "items"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -5, 2**60, 0.1, math.nan, math.inf, -math.inf, "", "a\nb", (), (1, (2, [3, "x"])), [],
        {1.5: (1, 2), "a": None, (1, 2): 3}, frozenset({1, 2}), np.arange(6, dtype=np.int32).reshape(2, 3),
        np.array([math.nan, 1.0]), np.array([True, False]), np.zeros((0, 3)), ["d", 0], ("f", "nan"),
    ],
)  # fmt: skip
def test_values_come_back(value):
    assert same(sent(value), value)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    layer = cdmpp.Workload("bert_tiny", batch=4)
    given = {"device": "a100", "runtime": "torch"}
    operators = [EagerOperator("linear", {"rows": 64, "inner": 64, "cols": 64}), EagerOperator.flat("relu", 5000)]
    return {
        "prediction": cdmpp.load_model("torch-gpus").predict(operators, device="a100"),
        "network": cdmpp.predict_network(layer, **given),
        "step": cdmpp.predict_step(layer, **given),
        "plans": cdmpp.search_plans(
            layer, device="a100", ranks=4, link="nvlink3", global_batch=32, progress=False, replays=3
        ),
    }


@pytest.mark.parametrize("name", ["prediction", "network", "step"])
def test_results_come_back(results, name):
    assert same(sent(results[name]), results[name])


def test_plans_come_back(results):
    found, given = sent(results["plans"]), results["plans"]
    for name in ("ranked", "rejected", "scaling", "front", "warnings", "top"):
        assert same(getattr(found, name), getattr(given, name)), name
    assert same(found.judged.costs, given.judged.costs)
    assert found.best.plan == given.best.plan
    assert (found.question.ranks, found.question.global_batch) == (4, 32)
    assert found.named("2") is found.ranked[1]
    with pytest.raises(CdmppError, match="stayed at the server"):
        found.question.topology(4)


def test_a_predicted_step_is_replayed_by_who_got_it(results):
    found = sent(results["step"])
    assert found.to_dict() == results["step"].to_dict()
    here = cdmpp.replay_step(results["step"], ranks=4, link="nvlink3", strategy="fsdp")
    assert cdmpp.replay_step(found, ranks=4, link="nvlink3", strategy="fsdp").iteration_s == here.iteration_s


@pytest.mark.parametrize(
    "stored",
    [
        {}, {"value": ["d", 0], "types": ["os:system"]}, {"value": ["d", 0, "ls"], "types": ["subprocess:Popen"]},
        {"value": ["d", 0, 1], "types": ["cdmpp.network.workload:KINDS"]}, {"value": ["x", 1], "types": []},
        {"value": ["d", 5], "types": []}, {"value": ["d", 0], "types": ["cdmpp.network.prediction:NetworkPrediction"]},
        {"value": ["a", "O", [1], "AAAA"], "types": []}, {"value": ["a", "<f8", [10**12], "AAAA"], "types": []},
        {"value": ["m", 1], "types": []}, {"value": ["d", 0], "types": ["cdmpp.network.predict:runtime_of"]},
        {"value": ["d", 0], "types": ["cdmpp.networks:x"]}, {"value": [], "types": []},
    ],
)  # fmt: skip
def test_anything_else_is_refused(stored):
    with pytest.raises(DataError):
        from_wire(stored)


def test_what_is_no_result_is_not_sent():
    for value in (object(), print, b"x", {1: object()}):
        with pytest.raises(CdmppError, match="no part of a result"):
            to_wire(value)
