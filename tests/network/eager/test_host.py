"""What a host takes around the kernels: recording, nodes, gradients and updates, on GPUs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from cdmpp import devices
from cdmpp.errors import UsageError
from cdmpp.network.eager.host import DEFAULT, Host, UpdateCost, dispatches_s
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.single_price import KERNEL_S, Price
from cdmpp.network.eager.step import read_step
from cdmpp.network.graph import Call
from cdmpp.network.workload import Workload

HOST = Host("a test", 5e-6, {"sgd": UpdateCost(100e-6, 2e-6), "adamw": UpdateCost(200e-6, 3e-6)})


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def prices(calls: int) -> list[Price]:
    return [Price(1e-6, 10e-6, {}, ())] * calls


def test_a_step_takes_its_recordings_nodes_gradients_and_update():
    read = read_step(Workload(network(), torch.randn(4, 8), optimizer="sgd", loss="mse", mode="training_step"))
    calls = read.graph.calls
    found = dispatches_s(calls, prices(len(calls)), HOST, read.trains, read.step)
    forward = [one for one in read.step.calls if one.phase == "forward"]
    nodes = {one.call.forward for one in read.step.calls if one.phase == "backward"}
    more = 5e-6 * (len(forward) + len(nodes) + 4) + 100e-6 + 4 * 2e-6
    assert sum(found) == pytest.approx(10e-6 * len(calls) + more)
    first = next(place for place, one in enumerate(read.step.calls) if one.phase == "update")
    assert found[first] == pytest.approx(10e-6 + 100e-6 + 8e-6)
    alone = dispatches_s(calls, prices(len(calls)), None, read.trains, read.step)
    assert alone == [10e-6] * len(calls)


def test_an_inference_takes_the_dispatch_alone_and_joined_kernels_none_of_their_own():
    calls = read_run(Workload(network(), torch.randn(4, 8))).graph.calls
    assert dispatches_s(calls, prices(len(calls)), HOST) == [10e-6] * len(calls)
    joined = [Call("a", "", (), 4), Call("b", "", (0,), 4, is_joined=True)]
    assert dispatches_s(joined, prices(2), HOST, True) == pytest.approx([15e-6, KERNEL_S])


def test_an_optimizer_has_its_own_seconds_or_those_of_adamw():
    assert HOST.update_cost("sgd clip 1") == UpdateCost(100e-6, 2e-6)
    assert HOST.update_cost("adafactor") == UpdateCost(200e-6, 3e-6)
    assert DEFAULT.update_cost("adamw-fused").parameter_s < DEFAULT.update_cost("adamw").parameter_s
    assert HOST.update_cost("none") == UpdateCost(0.0, 0.0)


def test_seconds_of_a_host_are_no_text():
    with pytest.raises(UsageError, match=r"host\.autograd_s"):
        Host("a test", "slow")


def test_small_steps_wait_for_the_host_and_large_ones_do_not():
    sheet = devices.get("h100")
    for width, rows, is_large in ((64, 8, False), (8192, 8192, True)):
        with torch.device("meta"):
            model, x = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)), torch.empty(rows, width)
        times = []
        for host in (None, DEFAULT, replace(DEFAULT, autograd_s=10 * DEFAULT.autograd_s)):
            runtime = EagerRuntime("torch-gpus", host)
            read = runtime.read(Workload(model, x, optimizer="sgd", loss="mse", mode="training_step"), sheet)
            times.append(runtime.launch(runtime.price(read, sheet)).timeline.makespan_s)
        if is_large:
            assert times[2] == pytest.approx(times[0], rel=0.02)
        else:
            assert times[0] < times[1] < times[2]


def test_a_cpu_is_its_own_host():
    sheet, x = devices.get("xeon-emeraldrapids"), torch.randn(4, 8)
    found = []
    for host in (None, DEFAULT):
        runtime = EagerRuntime("torch-gpus", host)
        read = runtime.read(Workload(network(), x, optimizer="sgd", loss="mse", mode="training_step"), sheet)
        found.append(runtime.price(read, sheet).dispatch_s)
    assert found[0] == found[1]
