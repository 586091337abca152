"""Values that cannot be, given to public functions and to the objects that they take: refused where they arrive.

Both sweeps walk the signatures and the fields themselves: an argument that is declared tomorrow is covered.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import cdmpp
from cdmpp import devices
from cdmpp.collectives import cluster, interconnect
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import topology_of
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.training_step import StepBuffer
from cdmpp.operators.operator import EagerOperator
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.framework_host import FrameworkHost
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.strategy import OperatorStrategy

ODD = (math.nan, math.inf, -1, 0, 1.5, 10**18, True, "no such thing", "", "a\nb", b"x", [], {}, ["x", "x"], object())
LAYER = cdmpp.Workload(torch.nn.Linear(16, 16), torch.zeros(4, 16), loss="mse")


@pytest.fixture(scope="module")
def step() -> cdmpp.StepPrediction:
    return cdmpp.predict_step(LAYER, device="a100", runtime="torch")


def accepted(call: Callable[[Any], Any], may: Any = ()) -> list[Any]:
    """The odd values that ``call`` takes without an error of ours, apart from those that it ``may``."""
    taken = []
    for value in ODD:
        if any(value is one or type(value) is type(one) and value == one for one in may):
            continue
        try:
            call(value)
        except CdmppError as error:
            assert len(str(error)) < 3000 and "\n" not in str(error)
        except Exception as error:  # noqa: BLE001 - it is told
            taken.append((value, error))
        else:
            taken.append((value, None))
    return taken


BY_TORCH = {"device": "a100", "runtime": "torch", "progress": False}
RANKS = {"ranks": 2, "link": "nvlink3"}
RUNS = cdmpp.RunTable.of({"gpus": [1, 2, 4, 8], "step_s": [1.1, 0.6, 0.35, 0.225]}, "step_s", ["gpus"])
CALLS: dict[str, dict[str, Any]] = {
    "load_model": {"path_or_name": "a100"},
    "predict_network": {"network": LAYER, **BY_TORCH},
    "compare_devices": {"network": LAYER, "devices": ["a100"], "runtime": "torch", "progress": False},
    "predict_step": {"network": LAYER, **BY_TORCH},
    "sweep_network": {"network": "bert_tiny", "axes": {"batch": [2]}, **BY_TORCH},
    "replay_step": RANKS,
    "optimize_step": RANKS,
    "search_plans": {
        "network": LAYER,
        "device": "a100",
        "ranks": 2,
        "link": "nvlink3",
        "global_batch": 8,
        "progress": False,
    },
    "fit_runs": {"table": RUNS, "seed": 0, "budget_s": 0.1},
}
OF_TVM = {
    "make_cost_model": {"device": "epyc-genoa"},
    "rank_schedules": {"task": None, "candidates": ["[[],[]]"], "device": "epyc-genoa"},
    "read_step": {"network": LAYER},
    "tune_network": {"network": LAYER, "device": "epyc-genoa", "folder": "database"},
}
MAY: dict[str, tuple[Any, ...]] = {
    "seed": (0,),
    "budget_s": (1.5,),
    "progress": (True,),
    "measure": (),
    "fallback": (),
    "slow": ({},),
    "strategies": ([],),
    "memory_gb": (1.5,),
    "replays": (0,),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_of_a_public_function_has_limits(name, step):
    function = getattr(cdmpp, name)
    given = CALLS[name] | ({"step": step} if "step" in inspect.signature(function).parameters else {})
    function(**given)
    for argument in inspect.signature(function).parameters:
        if argument != "example_inputs":  # goes with a network that is no Workload: see the next test
            found = accepted(
                lambda value, argument=argument: function(**given | {argument: value}), MAY.get(argument, ())
            )
            assert found == [], (argument, found)


def test_every_argument_of_a_prediction_has_limits():
    predict, operator = cdmpp.load_model("torch-gpus").predict, EagerOperator.parse("linear", "8x8x8", "float32")
    may = {"compiled": (True,), "retarget": (True,), "limit_s": (0, 1.5)}
    given: dict[str, Any] = {"programs": [operator], "device": "a100"}
    for argument in inspect.signature(predict).parameters:
        found = accepted(lambda value, argument=argument: predict(**given | {argument: value}), may.get(argument, ()))
        assert found == [], (argument, found)


def test_example_inputs_that_cannot_be_are_refused():
    call = lambda value: cdmpp.predict_network(LAYER.network, value, **BY_TORCH)  # noqa: E731
    assert accepted(call) == []


def began(*_: Any) -> None:
    raise AssertionError("work began")


@pytest.mark.tvm
@pytest.mark.parametrize("name", OF_TVM)
def test_every_argument_of_a_function_of_tvm_has_limits(name, monkeypatch, tmp_path):
    pytest.importorskip("tvm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CompiledRuntime, "read", began)
    function = getattr(cdmpp, name)
    zero = {"trials": (0,), "seed": (0,), "look": (0,)}
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument in ("example_inputs", "task") or argument == "network" and name == "read_step":
            continue
        may = (True,) if str(parameter.annotation).startswith("bool") else zero.get(argument, ())
        if argument in ("folder", "network", "model"):  # a network, and a model for it, are looked for later
            may = ("no such thing",)
        found = accepted(lambda value, argument=argument: function(**OF_TVM[name] | {argument: value}), may)
        assert found == [], (argument, found)
    assert list(tmp_path.iterdir()) == []


OF_A_SERVER: dict[str, dict[str, Any]] = {
    "remote": {"url": "http://127.0.0.1:1", "timeout_s": 1.0, "token": "t" * 32, "ca_file": None}
}


@pytest.mark.parametrize("name", OF_A_SERVER)
def test_every_argument_of_a_function_of_a_server_has_limits(name):
    pytest.importorskip("httpx")
    function, given = getattr(cdmpp, name), OF_A_SERVER[name]
    assert set(given) == set(inspect.signature(function).parameters)
    for argument in given:
        for value in ODD:
            if not (argument == "timeout_s" and value == 1.5):
                with pytest.raises(UsageError):  # before anything is asked
                    function(**given | {argument: value})


def test_no_public_function_is_left_out():
    functions = {name for name in cdmpp.__all__ if inspect.isfunction(getattr(cdmpp, name))}
    assert functions == {*CALLS, *OF_TVM, *OF_A_SERVER}


OP, LATER = Op("a", "forward", 1e-3), Op("b", "backward", 1e-3)
GRADIENT, SPAN = Gradient("w", 4, 1), ModuleSpan("m", 4, (0, 0), (1, 1))
RANK = RankGraph(0, (OP, LATER), (GRADIENT,), (SPAN,))
TEXTS = ("no such thing",)
ANY_TEXT = ("no such thing", "", "a\nb")
SECONDS = (0, 1.5, 10**18)
TRUE = {"bool": (True,), "bool | None": (True,)}
MADE: list[tuple[Any, Mapping[str, tuple[Any, ...]]]] = [
    (LAYER, {"network": TEXTS, "example_inputs": ODD, "inputs": ({},), "moe_imbalance": (1.5,), "boxes": (0,)}),
    (cdmpp.Plan(), {"recompute": ([],), "devices": ([],), "shares": ([],), "offload": ([],)}),
    (ParallelDegrees(), {}),
    (DDP(), {}),
    (FSDP(), {}),
    *((kind(), {}) for kind in STRATEGIES if issubclass(kind, OperatorStrategy)),
    (HSDP(), {}),
    (ZeRO(), {"gathered_share": (1.5,)}),
    (ParameterServer(), {"sum_bytes_per_s": (1.5, 10**18)}),
    (Pipeline(), {"cuts": ([],)}),
    (Collective("all_reduce", 8, 2), {}),
    (cluster.get("dgx-a100"), {"name": TEXTS, "title": TEXTS, "source": TEXTS}),
    (cluster.get("dgx-a100").host, {"memory_gb": (1.5,), "memory_gbps": (1.5,)}),
    (interconnect.get("nvlink3"), {
        **dict.fromkeys(("name", "title"), TEXTS), **dict.fromkeys(("sources", "ranges"), ({},)),
        **dict.fromkeys(("bandwidth_gbps", "reached_gbps"), (1.5,))}),
    (FrameworkHost(), {
        **dict.fromkeys(("collective_s", "check_s", "message_s", "far_message_s", "step_s"), (0, 1.5)),
        "dispatch": (1.5,), "unhidden": (0,), "origin": TEXTS}),
    (topology_of(2, "a100", link="nvlink3"), {
        "name": TEXTS, "near_rate": SECONDS, "far_rate": SECONDS,
        **dict.fromkeys(("warnings", "near_flags"), ([], ["x", "x"]))}),
    (devices.get("a100"), {"name": TEXTS, "title": TEXTS, "core": TEXTS, "sources": ({},), "ranges": ({},)}),
    (EagerOperator.parse("linear", "8x8x8", "float32"), {"elements": (0, 1.5)}),
    (CompiledRuntime(), {"model": TEXTS}),
    (EagerRuntime(), {"model": TEXTS}),
    (Exchange("all_reduce", 4, {0: 0}), {
        **dict.fromkeys(("kind", "name", "group"), ANY_TEXT), **dict.fromkeys(("bytes", "server"), (0,)),
        **dict.fromkeys(("after", "before", "lag_s", "blocks"), ({},)),
        **dict.fromkeys(("sum_s", "wire_s", "spread_s"), SECONDS)}),
    (RANK, {"rank": (0,), "gradients": ([],), "modules": ([],), "buffers": ([],), "start_s": SECONDS, "tail_s": SECONDS,
            "update_shards": (10**18, 1.5)}),
    (StepGraph((RANK,)), {
        **dict.fromkeys(("exchanges", "processors"), ([],)), **dict.fromkeys(("workers", "processor_share"), (0,)),
        "backend": ANY_TEXT}),
]  # fmt: skip


@pytest.mark.parametrize(("made", "may"), MADE, ids=lambda one: type(one).__name__)
def test_every_field_of_an_object_has_limits(made, may):
    replace(made)
    for field in fields(made):
        found = accepted(
            lambda value, name=field.name: replace(made, **{name: value}), may.get(field.name, TRUE.get(field.type, ()))
        )
        assert found == [], (field.name, found)


PARTS: list[tuple[Any, Callable[[Any], Any], Mapping[str, tuple[Any, ...]]]] = [
    (LATER, lambda op: RankGraph(0, (OP, op)), {
        **dict.fromkeys(("name", "kind", "stream"), ANY_TEXT),
        **dict.fromkeys(("duration_s", "gap_s", "delay_s", "spread_s"), SECONDS),
        **dict.fromkeys(("output_bytes", "result_bytes", "gradient_bytes", "workspace_bytes"), (0, 10**18)),
        **dict.fromkeys(("saved_bytes", "own_saved_bytes"), (0, 10**18)),
        "forward": (0,)}),
    (StepBuffer(4, "float32"), lambda one: RankGraph(0, (OP, LATER), buffers=(one,)), {
        "bytes": (0,), "dtype": TEXTS}),
    (GRADIENT, lambda one: RankGraph(0, (OP, LATER), (one,)), {
        "name": ANY_TEXT, "dtype": ANY_TEXT, "bytes": (0, 10**18), "ready_after": (0, -1)}),
    (SPAN, lambda one: RankGraph(0, (OP, LATER), (), (one,)), {
        "name": ANY_TEXT, "bytes": (10**18,), "rows": ([],), "trained_rows": ([],)}),
]  # fmt: skip


@pytest.mark.parametrize(("made", "put", "may"), PARTS, ids=lambda one: type(one).__name__)
def test_every_field_of_a_part_of_a_step_has_limits(made, put, may):
    put(made)
    for field in fields(made):
        found = accepted(
            lambda value, name=field.name: put(replace(made, **{name: value})),
            may.get(field.name, TRUE.get(field.type, ())),
        )
        assert [one for one in found if one[0] is not True] == [], (field.name, found)


def test_every_strategy_is_swept():
    assert {type(made) for made, _ in MADE} >= set(STRATEGIES)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: cdmpp.Plan(gradient_accumulation_steps=2.5), "plan.gradient_accumulation_steps is 2.5"),
        (lambda: cdmpp.Plan(recompute=("h.0", "h.0")), "plan.recompute says 'h.0' twice"),
        (lambda: ParameterServer(True), "ps.servers is True"),
        (lambda: ParameterServer(servers=-3), "ps.servers is -3"),
        (lambda: ParameterServer(part_bytes=0), "ps.part_bytes is 0"),
        (lambda: DDP(1.5), "ddp.bucket_bytes is 1.5"),
        (lambda: DDP((1.5,)), r"ddp.bucket_bytes\[0\] is 1.5"),
        (
            lambda: devices.get("h200").with_spec(bandwidth_gbps=4.8),
            "bandwidth_gbps is 4.8 GB/s: expected what a gpu has, 8",
        ),
        (lambda: devices.get("h200").with_spec(core_count=1.5), "core_count is 1.5: expected a whole number"),
    ],
)
def test_a_value_that_cannot_be_is_a_usage_error(make, told):
    with pytest.raises(CdmppError, match=told):
        make()


@pytest.mark.parametrize("limit", [-1, 0, math.nan, math.inf, 1.5, "8 GB"])
def test_a_memory_limit_that_cannot_be_is_a_usage_error(step, limit):
    with pytest.raises(UsageError, match="memory_limit_bytes is .*expected a whole number from 1"):
        cdmpp.optimize_step(step, memory_limit_bytes=limit, **RANKS)
