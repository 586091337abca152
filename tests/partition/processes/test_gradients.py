"""Real runs of stages train what the schedule says: beside plain loops and recurrences computed here."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from cdmpp.partition import train
from cdmpp.partition.processes.record import load_record
from cdmpp.plans.schedules import SCHEDULES
from tests.partition.processes import toy_networks as toy


def same(found, expected):
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("build", "optimizer"), [(toy.network, toy.MOMENTUM), (toy.with_dropout, toy.ADAM)])
def test_one_stage_is_a_plain_loop_to_the_bit(build, optimizer):
    found = train(build, [], "sequential", toy.data, toy.MSE, optimizer, steps=9)
    expected, losses = toy.plain_loop(build, optimizer, 9)
    assert same(found.parameters, expected) and [one.loss for one in found.record.losses] == losses
    assert [one.samples for one in found.record.losses] == [8 * step for step in range(1, 10)]
    delayed = train(build, [], "delayed", toy.data, toy.MSE, optimizer, steps=9)
    assert same(delayed.parameters, expected)


@pytest.mark.parametrize("schedule", ["sequential", "gpipe", "1f1b"])
def test_stages_that_flush_train_as_one_device(schedule, tmp_path):
    found = train(
        toy.network, [2, 4], schedule, toy.data, toy.MSE, toy.ADAM, steps=6, micro_batches=4, held_out=toy.held_out,
        score=toy.near, held_out_every=3,
    )  # fmt: skip
    expected, losses = toy.plain_loop(toy.network, toy.ADAM, 6, 4)
    whole, _ = toy.plain_loop(toy.network, toy.ADAM, 6)
    for name, one in found.parameters.items():
        assert torch.equal(one, expected[name])  # the same micro-batches one after another
        torch.testing.assert_close(one, whole[name], rtol=0, atol=1e-6)  # the whole batch at a time
    assert [one.loss for one in found.record.losses] == losses
    model = toy.network()
    model.load_state_dict(found.parameters)
    inputs, targets = toy.held_out()
    last = found.record.held_out[-1]
    assert (last.steps, last.samples) == (6, 48) and [one.steps for one in found.record.held_out] == [0, 3, 6]
    assert last.loss == pytest.approx(toy.MSE(model(inputs), targets).item(), rel=1e-6)
    assert last.score == toy.near(model(inputs), targets)
    kinds = {"gpipe": [4, 4, 4], "1f1b": [3, 2, 1], "sequential": [1, 1, 1]}
    assert [one.live for one in found.record.stages] == kinds[schedule]
    assert [one.staleness for one in found.record.stages] == [0, 0, 0]
    found.record.save(tmp_path / "run.json")
    assert load_record(tmp_path / "run.json") == found.record


def chain(weights, x):
    """What each of the numbers takes and returns."""
    values = [x]
    for weight in weights:
        values.append(weight * values[-1])
    return values


def stale_weights(rate, count, staleness, of_backward, stages=3):
    """Run w_k <- w_k - rate g_k(t - d_k) by hand: ``of_backward`` says with which weights a stage goes back.

    A version before the first one is the first one.
    """
    history = [[value] for value in toy.FACTORS]

    def weight(stage, version):
        return history[stage][max(0, version)]

    for number in range(count):
        x, target = toy.number(number)
        values = chain([weight(stage, number - staleness[stage]) for stage in range(stages)], x)
        gradient = values[-1] - target
        for stage in reversed(range(stages)):
            own = gradient * values[stage]
            gradient *= weight(stage, of_backward(stage, number))
            history[stage].append(history[stage][-1] - rate * own)
    return [own[-1] for own in history]


@pytest.mark.parametrize(
    ("schedule", "staleness", "of_backward"),
    [
        # as old weights go back as went forward
        ("pipedream", [2, 1, 0], lambda stage, number: number - [2, 1, 0][stage]),
        # one version is held: gradients of older activations meet the newest weights
        ("delayed", [4, 2, 0], lambda stage, number: number),
        # the weights before the last update, which lie where those of the forward pass lay
        ("side-by-side", [5, 3, 1], lambda stage, number: number - 1),
    ],
)
def test_delayed_gradients_follow_their_recurrence(schedule, staleness, of_backward):
    rate = 0.02
    for micro_batches in (1, 4):
        data = partial(toy.numbers, micro_batches=micro_batches)
        found = train(
            toy.factors, [1, 2], schedule, data, toy.half_square, partial(torch.optim.SGD, lr=rate),
            steps=24 // micro_batches, micro_batches=micro_batches,
        )  # fmt: skip
        values = [found.parameters[f"{stage}.value"].item() for stage in range(3)]
        assert values == pytest.approx(stale_weights(rate, 24, staleness, of_backward), rel=1e-12)
        assert [one.staleness for one in found.record.stages] == staleness
        assert [one.live for one in found.record.stages] == [
            SCHEDULES[schedule]().live_micro_batches(stage, 3, 24) for stage in range(3)
        ]


def test_two_versions_of_weights_are_one_update_late_on_all_stages():
    rate, many = 0.02, 4
    found = train(
        toy.factors, [1, 2], "2bw", partial(toy.numbers, micro_batches=many), toy.half_square,
        partial(torch.optim.SGD, lr=rate), steps=7, micro_batches=many,
    )  # fmt: skip
    before = now = torch.tensor(toy.FACTORS, dtype=torch.float64)
    for step in range(7):
        weights = before.clone().requires_grad_()
        inputs, targets = toy.numbers(step, many)
        (gradient,) = torch.autograd.grad(toy.half_square(weights.prod() * inputs, targets), weights)
        before, now = now, now - rate * gradient
    values = [found.parameters[f"{stage}.value"].item() for stage in range(3)]
    assert values == pytest.approx(now.tolist(), rel=1e-12)
    assert [one.versions for one in found.record.stages] == [2, 2, 2]
    assert [one.staleness for one in found.record.stages] == [1, 1, 1]


def test_stash_is_what_autograd_saves_of_the_micro_batches_under_way():
    found = train(toy.network, [2, 4], "1f1b", toy.data, toy.MSE, toy.SGD, steps=3, micro_batches=4)
    # Bytes of one example of float32. Linear saves its input, which stage 0 was given; Tanh saves its result.
    # Stage 1 keeps what it received for Linear, and the result of ReLU. LayerNorm saves its input, which is what stage
    # 2 received, and mean and deviation of each example; Linear its input; the loss its inputs.
    examples, each = 2, [4 * (3 + 5), 4 * (5 + 4), 4 * (4 + 2 + 4 + 2) + 8]
    full = [own * examples for own in each]
    full[2] += 4 * 8 * 2 - 8 * examples  # targets are a part of the batch, and its whole memory is kept
    live = [3, 2, 1]
    inputs = 4 * 8 * 3 - 4 * 3 * examples  # and so are the inputs of the first stage
    assert found.record.stages[1].stash_bytes == live[1] * full[1]
    assert found.record.stages[0].stash_bytes == live[0] * (full[0] + inputs)
    assert found.record.stages[2].stash_bytes == live[2] * full[2]


def test_clipping_and_warm_up_are_those_of_the_optimizers_of_a_plain_loop():
    found = train(toy.network, [3], "1f1b", toy.data, toy.MSE, toy.SGD, steps=6, warm_up=3, clip_norm=0.1)
    torch.manual_seed(0)
    model = toy.network()
    halves = [[*model[:3].parameters()], [*model[3:].parameters()]]
    trains = toy.SGD(model.parameters())
    for step in range(6):
        trains.zero_grad()
        inputs, targets = toy.data(step)
        toy.MSE(model(inputs), targets).backward()
        for half in halves:
            torch.nn.utils.clip_grad_norm_(half, 0.1)
        trains.param_groups[0]["lr"] = 0.1 * min(1.0, (step + 1) / 4)
        trains.step()
    for name, one in model.state_dict().items():
        torch.testing.assert_close(found.parameters[name], one, rtol=0, atol=1e-7)
