"""Second-level caches of GPUs: how fast a repeated call is whose data one holds, and who measured that."""

from __future__ import annotations

import numpy as np
import pytest

import cdmpp
from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.model.eager_prior import EagerPrior
from cdmpp.model.old_shapes import current_shapes
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_vector import operator_program
from cdmpp.predict.flags import IN_CACHE

_CALLS = [EagerOperator("relu", {"rows": 2**power, "cols": 1024}) for power in range(6, 18)]
"""0.5 to 1,074 MB: the cache of an L4 holds 50."""


def programs(operators, device, latency_s=None):
    kind = "cpu" if devices.get(device).kind == "cpu" else "gpu"
    asts = AstTable.from_asts(operator_program(one, kind) for one in operators)
    return ProgramTensors.build(asts, {device: devices.get(device)}, [device] * len(operators), latency_s)


def answers(prior, device, operators=_CALLS):
    found = prior(programs(operators, device).batch(np.arange(len(operators)))).exp().numpy()
    floor = float(prior.numbers[-1, 0].exp())
    return np.array([one.io_bytes for one in operators]) / (found - floor) / 1e9


def test_what_a_cache_holds_moves_at_its_bandwidth_and_all_else_at_that_of_the_memory():
    gbps, prior = answers(EagerPrior(4, devices.VECTOR_WIDTH), "l4"), EagerPrior(4, devices.VECTOR_WIDTH)
    spec, shares = devices.get("l4").spec, prior.numbers[-1].exp().numpy()
    of_cache = shares[4] * 64 * spec["core_count"] * spec["clock_mhz"] / 1e3
    of_memory = shares[2] * spec["bandwidth_gbps"]
    np.testing.assert_allclose(gbps[:6], of_cache, rtol=0.02)
    assert gbps[-1] == pytest.approx(of_memory, rel=0.02)
    assert (np.diff(gbps) < 0.02 * of_cache).all(), "more bytes never move faster"


def test_the_cache_of_a_cpu_and_one_that_an_older_prior_did_not_know_change_nothing():
    prior = EagerPrior(4, devices.VECTOR_WIDTH)
    of_cpu = answers(prior, "xeon-icelake")
    np.testing.assert_allclose(of_cpu, of_cpu[-1], rtol=0.02)
    model = build_for(model_config({"name": "library", "hidden": 16}), _measured(), np.arange(len(_CALLS)))
    state = {f"members.0.{name}": value for name, value in model.state_dict().items()}
    old = {name: value for name, value in state.items() if not name.endswith(".cached")}
    for name in ("numbers", "own", "halves"):
        old[f"members.0.prior.{name}"] = state[f"members.0.prior.{name}"][..., :4]
    old["members.0.prior.shared"] = state["members.0.prior.shared"][:2]
    current = current_shapes(old)
    assert {name: value.shape for name, value in current.items()} == {n: v.shape for n, v in state.items()}
    assert current_shapes(current).keys() == current.keys()
    model.load_state_dict({name.removeprefix("members.0."): value for name, value in current.items()})
    found = answers(model.prior, "l4")
    np.testing.assert_allclose(found, found[-1], rtol=0.02)
    assert not model.only_cached(_codes(_CALLS), devices.get("l4")).any(), "it does not know, so it says nothing"


def test_calls_in_a_cache_of_which_the_training_had_none_are_told():
    model = build_for(model_config({"name": "library", "hidden": 16}), _measured(), np.arange(7, len(_CALLS)))
    told = model.only_cached(_codes(_CALLS), devices.get("l4"))
    held = np.array([4 << 20 < one.io_bytes < 48 << 20 for one in _CALLS])
    assert told.tolist() == held.tolist()
    assert 2 < held.sum() < 5
    assert not model.only_cached(_codes(_CALLS), devices.get("t4")).any(), "never seen: another warning"
    model = build_for(model_config({"name": "library", "hidden": 16}), _measured(), np.arange(len(_CALLS)))
    assert not model.only_cached(_codes(_CALLS), devices.get("l4")).any()
    products = [EagerOperator.parse("linear", "1024x1024x1024")]
    assert model.only_cached(_codes(products), devices.get("l4")).all(), "of this family it had none"


def _measured():
    """The calls on an L4, at 200 GB/s."""
    return programs(_CALLS, "l4", np.array([2e-5 + one.io_bytes / 2e11 for one in _CALLS]))


def _codes(operators):
    return AstTable.from_asts(operator_program(one, "gpu") for one in operators).codes


@pytest.mark.parametrize("device", ["l4", "rtx4090", "l40s"])
def test_the_shipped_model_answers_sooner_than_the_memory_could(device):
    call, spec = EagerOperator.parse("add", "2560x1024"), devices.get(device).spec
    assert call.io_bytes < 1024 * spec["l2_kb"]
    answer = cdmpp.load_model("torch-gpus").predict([call], device=device)
    assert answer.latency_s[0] < 0.7 * call.io_bytes / (1e9 * spec["bandwidth_gbps"])
    assert (IN_CACHE in answer.flags[0]) == (device == "l4"), "the others are unknown devices, which have a warning"


def test_a_call_in_the_cache_of_an_l4_is_near_what_was_timed():
    predictor = cdmpp.load_model("torch-gpus")
    answer = predictor.predict([EagerOperator.parse("add", "6144x512")], device="l4")
    assert answer.latency_s[0] == pytest.approx(55.3e-6, rel=0.4), "288 us from memory"
    low, high = answer.interval(0)[0.8]
    assert low < 55.3e-6 < high
