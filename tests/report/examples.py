"""A report of each kind of result, its names hostile where they come from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.network.comparison import Answer, Comparison
from cdmpp.plans import search
from cdmpp.plans.oracle import ask
from cdmpp.plans.question import Question
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.predict.prediction import Prediction
from cdmpp.report.collective import collective_report
from cdmpp.report.comparison import comparison_report
from cdmpp.report.network import network_report
from cdmpp.report.oracle import oracle_report
from cdmpp.report.plan import plan_report
from cdmpp.report.programs import programs_report
from cdmpp.report.replay import replay_report
from cdmpp.report.report import Report
from cdmpp.report.trace import trace_report
from cdmpp.report.tuning import tuning_report
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Measured, Op, RankGraph, StepGraph
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.trace.diagnosis import diagnose
from cdmpp.tuning.offline import TunedKernel, TunedNetwork
from tests.network.example_prediction import example, kernels
from tests.plans.toy_job import evaluator, layers
from tests.plans.toy_source import ToySource
from tests.steps.toy_graph import graph_of, rank_graph, wires


def network(name: str) -> Report:
    used = [replace(kernel, name=f"{name}{i}", op_class=name) for i, kernel in enumerate(kernels())]
    return network_report(
        example(used, engines=(name or "stream",), network=name, model=name, warnings=(name,), schedule=name)
    )


def comparison(name: str) -> Report:
    usual = replace(example(), network=name, model=name, warnings=(name,))
    return comparison_report(Comparison((Answer("a100", usual), Answer(name, None, f"no model. {name}"))))


def step_replay(name: str) -> Report:
    ranks = [rank_graph(rank, layer_s=2e-3 if rank == 3 else 1e-3) for rank in range(4)]
    ranks = [replace(one, ops=tuple(replace(op, name=f"{name}{op.name}") for op in one.ops)) for one in ranks]
    return replay_report(replace(replay_strategy(graph_of(*ranks), DDP(), wires(4)), warnings=(name,), topology=name))


def plan(name: str) -> Report:
    found = search(evaluator(layers((2**21,) * 8, (1e-3,) * 8), alpha_s=20e-3, beta_s=1e-12))
    steps = tuple(replace(one, change=name) for one in found.steps)
    return plan_report(replace(found, steps=steps, warnings=(name,)))


def oracle(name: str) -> Report:
    question = Question(ToySource(), wires, 8, 32, ("data", "fsdp", "filter"), warnings=(name,))
    found = ask(question, top=3, replays=1, counts=(1, 2, 4, 8, 16))
    ranked = tuple(replace(one, words=f"{name}{one.words}") for one in found.ranked)
    front = tuple(replace(one, words=f"{name}{one.words}") for one in found.front)
    return oracle_report(replace(found, ranked=ranked, front=front), 2.0, "2")


def traced(name: str = "addmm") -> StepGraph:
    def rank(number: int, seconds: float) -> RankGraph:
        ops = (
            Op(name, "forward", seconds, delay_s=1e-4),
            Op("mm", "backward", 2 * seconds),
            Op("step", "update", seconds),
        )
        return RankGraph(number, ops)

    exchange = Exchange("all_reduce", 2**20, {0: 1, 1: 1}, {0: (2,), 1: (2,)}, wire_s=3e-3, lag_s={0: 0.0, 1: 0.0})
    measured = Measured(steps_s=(11e-3, 11.5e-3, 12e-3), waits_s={0: 3e-3, 1: 0.0})
    return StepGraph((rank(0, 1e-3), rank(1, 2e-3)), (exchange,), backend="gloo", measured=measured)


def trace(name: str) -> Report:
    graph = traced(name)
    base = replay(graph)
    return trace_report(graph, base, (), {f"kernel:{name}": "0.5"}, base, diagnose(graph))


def collective(name: str) -> Report:
    found = CollectiveEstimate(1e-3, 0.8e-3, 1.3e-3, name, (name,))
    return collective_report(Collective("all_reduce", 2**26, 8, "nccl"), found)


def programs(name: str) -> Report:
    bounds = np.array([0.5e-3, 1e-3]), np.array([2e-3, np.nan])
    found = Prediction(
        np.array([2e-3, 1e-3]), (f"{name}0", f"{name}1"), devices.get("t4"), False, np.zeros(2),
        intervals={0.8: (bounds[0], np.array([4e-3, 4e-3]))}, promised={0.8: 0.7}, flags=((), ("unlike training",)),
        refused=(name,),
    )  # fmt: skip
    return programs_report(found, name)


def tuned(name: str) -> Report:
    return tuning_report(TunedNetwork(name, "t4", Path("db"), (TunedKernel("id", name, 3, 1e-3, None, 0),)))


REPORTS: dict[str, Callable[[str], Report]] = {
    "network": network, "comparison": comparison, "replay": step_replay, "plan": plan, "oracle": oracle, "trace": trace,
    "collective": collective, "programs": programs, "tuned": tuned,
}  # fmt: skip
