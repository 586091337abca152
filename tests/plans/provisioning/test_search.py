"""The search over configurations: against all of them, pruned, under limits, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from plans.toy_source import ToySource

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import InfeasiblePlanError, UsageError
from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.counts import Counts
from cdmpp.plans.provisioning.pace import Pace
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.plans.provisioning.search import EQUAL, provision
from cdmpp.synchrony.policies import synchrony_of

LINK = AlphaBeta(1e-4, 1 / 2.5e8)


def question(machines: int = 12, **changes: Any) -> ProvisioningQuestion:
    return ProvisioningQuestion(ToySource(), LINK, machines, 32, spread=0.05, **changes)


@pytest.mark.parametrize("synchrony", ["async", "bsp"])
def test_chosen_is_the_best_of_all_configurations(synchrony: str):
    asked = question(
        machines_per_replica=Counts(1, 3), threads=Counts(1, 2), slowdown=(1.0, 1.2),
        synchrony=synchrony_of(synchrony),
    )  # fmt: skip
    found = provision(asked, 5, replays=0)
    speeds = {one: Pace(asked, one).samples_per_s for one in asked.configurations()}
    assert found.possible == len(speeds) > found.evaluated
    near = [one for one, speed in speeds.items() if speed >= (1 - EQUAL) * max(speeds.values())]
    assert found.best.configuration.machines == min(one.machines for one in near)
    assert found.best.samples_per_s == pytest.approx(max(
        speed for one, speed in speeds.items() if one.machines == found.best.configuration.machines
    ), rel=EQUAL)  # fmt: skip
    for one in found.front:
        same = [speed for other, speed in speeds.items() if other.machines <= one.configuration.machines]
        assert one.samples_per_s == pytest.approx(max(same), rel=EQUAL)


def test_best_are_replayed_and_changes_are_those_of_the_closed_form():
    found = provision(question(8), 4, replays=2)
    assert [one.by for one in found.ranked] == ["replay", "replay", "closed form", "closed form"]
    best = found.best
    assert best.samples_per_s == pytest.approx(best.formula_samples_per_s, rel=0.05)
    assert best.outcome is not None and best.outcome.commits > 100
    assert best.low < best.samples_per_s < best.high  # the toy's interval is from 0.9 to 1.2 times its seconds
    base = Pace(found.question, best.configuration).samples_per_s
    one = next(change for change in found.changes if change.name == "one more server")
    more = Configuration(best.configuration.replicas, 1, 1, best.configuration.servers + 1)
    assert one.gain == pytest.approx(Pace(found.question, more).samples_per_s / base - 1) and one.machines == 1
    assert (best.configuration.replicas, best.formula_samples_per_s) in found.curve


def test_ranges_are_kept():
    found = provision(question(machines=24, workers=Counts(16, 16), servers=Counts(1, 8)), 20, replays=0)
    assert found.possible == 8
    assert {one.configuration.workers for one in found.ranked} == {16}
    assert {one.configuration.servers for one in found.ranked} <= set(range(1, 9))


def test_memory_asks_for_more_machines_a_replica():
    whole = question(machines_per_replica=Counts(1, 4))
    needed = whole.replica(1).held_bytes(1)
    tight = question(machines_per_replica=Counts(1, 4), memory_limit_bytes=float(needed or 0) / 2)
    found = provision(tight, 3, replays=0)
    assert found.unfit > 0 and found.best.configuration.machines_per_replica > 1
    with pytest.raises(InfeasiblePlanError, match="holds .* which need least: allow more machines a replica"):
        provision(question(memory_limit_bytes=1e6), replays=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machines": 0}, "machines is 0"),
        ({"machines": 1}, "need 2 machines, and the budget is 1"),
        ({"servers": Counts(30, 30)}, "30 servers next to 1 machines that train need 31 machines"),
        ({"workers": Counts(12, 12)}, "need 13 machines, and the budget is 12"),
        ({"workers": Counts(3, 3), "machines_per_replica": Counts(2, 2)}, "make no whole replicas"),
        ({"threads": Counts(1, 2), "is_gpu": True}, "a GPU trains one batch at a time"),
        ({"threads": Counts(1, 4), "slowdown": (1.0, 1.1)}, "factors of 2 threads, and 4 are asked for"),
        ({"slowdown": (0.5,)}, "expected a number from 1"),
        ({"synchrony": synchrony_of("local:4")}, "for async, ssp or bsp"),
        ({"synchrony": synchrony_of("async:4")}, "say by commit_every"),
        ({"commit_every": 0}, "commit_every is 0"),
        ({"machines": 4000, "machines_per_replica": Counts(1, 4000)}, "give narrower ranges"),
    ],
)
def test_impossible_questions_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        question(**changes)


@pytest.mark.parametrize("given", ["", "0", "3..2", "1..", "a..b", "1-3", "-1..2"])
def test_unsound_ranges_are_refused(given: str):
    with pytest.raises(UsageError, match="expected"):
        Counts.read(given)


def test_ranges_are_read_and_written():
    assert (str(Counts.read("1..8")), str(Counts.read("4"))) == ("1..8", "4")
    assert list(Counts.read("2..5").within(4)) == [2, 3, 4]
