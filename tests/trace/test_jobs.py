"""The measured jobs of benchmarks.distributed_jobs: scores that notice and rows that count."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.distributed_jobs.report import PAGE, TABLE, markdown, read_table, write_table
from benchmarks.distributed_jobs.scenario import SCENARIOS, Scenario, from_dict
from benchmarks.distributed_jobs.score import Figure, bucket_orders, figures, permuted, scores, usable
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.links import scale_bandwidth
from cdmpp.trace.graph_file import graph_to_dict
from tests.steps.toy_traced import job


def row(scenario: Scenario, traced, reference: float = 1.0) -> dict:
    told = json.loads(json.dumps({"scenario": scenario.to_dict(), "job": graph_to_dict(traced)}))
    step_s = replay(traced).step_s
    return told | {
        "name": scenario.name,
        "unprofiled_s": step_s,
        "before_s": [step_s],
        "after_s": [step_s],
        "reference_s": [[1.0, reference]],
    }


def test_jobs_are_many_and_named_apart():
    names = [one.name for one in SCENARIOS]
    assert len(set(names)) == len(names) >= 20
    assert {one.scheme for one in SCENARIOS} == {"ddp", "fsdp", "server"}
    assert all(from_dict(json.loads(json.dumps(one.to_dict()))) == one for one in SCENARIOS)


def test_visits_on_a_slow_machine_do_not_count():
    one = Scenario("mlp", "ddp", 400)
    measured, refused = usable([row(one, job()), row(one, job(slow=3.0), reference=1.4)])
    assert [m.seconds for m in measured] == pytest.approx([13.5])
    assert len(refused) == 1 and "20% slower" in refused[0]


def test_every_pair_that_differs_in_one_setting_is_asked():
    slow, fast = Scenario("mlp", "ddp", 4, 1.0), Scenario("mlp", "ddp", 8, 1.0)  # the traced rate
    rows = [row(fast, job()), row(slow, scale_bandwidth(job(), 0.5))]
    rows += [row(replace(slow, scheme="fsdp"), job())]
    found = list(figures(usable(rows)[0]))
    asked = [(one.kind, one.scenario, one.traced) for one in found if one.kind != "replay"]
    assert asked == [("mbit", fast.name, slow.name), ("mbit", slow.name, fast.name)]
    assert max(one.error() for one in found) < 1e-4
    assert max(one.error("no_overlap_s") for one in found) > 0.1


def some_figures() -> list[Figure]:
    found, nan = [], float("nan")
    for number in range(12):
        step, name = 1.0 + 0.3 * number, f"job{number}"
        found.append(Figure("replay", name, name, step, step, 1.02 * step, nan, 2 * step, 0.5 * step))
        found.append(Figure("bucket_mb", name, "job0", step, nan, 1.04 * step, step, 2 * step, 0.5 * step))
    return found


def test_exchanged_measurements_fail():
    by = {(one.group, one.column): one for one in scores(some_figures())}
    assert by["replay", "predicted_s"].median == pytest.approx(0.02)
    assert by["what if", "predicted_s"].p90 == pytest.approx(0.04)
    assert by["replay", "permuted"].median > 0.15 and by["what if", "permuted"].median > 0.15
    assert all(a.measured_s != b.measured_s for a, b in zip(some_figures(), permuted(some_figures()), strict=True))


def test_orders_of_bucket_sizes():
    ((traced, clear, right),) = bucket_orders(some_figures())
    assert traced == "job0" and clear == right > 50


def test_figures_survive_their_table(tmp_path):
    write_table(some_figures(), tmp_path / "jobs.csv")
    again = read_table(tmp_path / "jobs.csv")
    assert markdown(again) == markdown(some_figures())


def test_our_own_page_shows_our_own_figures():
    if not TABLE.exists():
        pytest.skip("no jobs were published yet: benchmarks.distributed_jobs --publish does")
    assert markdown(read_table(TABLE)) in PAGE.read_text()
