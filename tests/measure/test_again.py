"""Recorded programs measured again: the noise floor, and labels in doubt."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.publish.card import card
from cdmpp.data.records import append_records, read_records
from cdmpp.errors import DataError
from cdmpp.measure import again
from cdmpp.measure.again import Repeater, Reviser
from cdmpp.measure.collector import Collector
from tests.measure.machine import ALL, Machine, settings


def test_repeats_measure_recorded_programs_again_and_resume(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Collector(settings(), tmp_path).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    with pytest.raises(DataError, match="an hour old"):
        Repeater(settings(), tmp_path, 5).run()
    monkeypatch.setattr(again, "MIN_AGE_S", -1.0)
    slower = json.dumps([[read_records(tmp_path)[0].task_id, 0], []])
    machine.noise = {slower: [1.1]}
    machine.kill_after = len(machine.visits) + 15
    with pytest.raises(KeyboardInterrupt):
        Repeater(settings(), tmp_path, ALL).run()
    machine.kill_after = 10**9
    found = Repeater(settings(), tmp_path, ALL).run()
    entries = [json.loads(line) for line in (tmp_path / "repeats.jsonl").read_text().splitlines()]
    assert found["programs"] == len(entries) == len({entry["record_id"] for entry in entries}) == ALL
    assert found["mean"] == pytest.approx(0.1 / ALL) and found["median"] == 0
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert "programs measured again" in card(tmp_path)


def test_doubtful_labels_are_visited_again_and_merged(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(budget=12), tmp_path).run()
    with pytest.raises(DataError, match="nothing to revise"):
        Reviser(settings(), tmp_path, 5).run()
    noisy, worse, calm = read_records(tmp_path)[:3]
    rows = read_records(tmp_path)
    for path in (tmp_path / "records").glob("*.parquet"):
        path.unlink()
    spoiled = {
        noisy.record_id: spread_out(noisy, (1.2e-3, 1.5e-3, 2e-3)),
        worse.record_id: spread_out(worse, (0.9e-3, 2e-3, 3e-3)),
    }
    append_records(tmp_path, [spoiled.get(r.record_id, r) for r in rows[:2]])
    append_records(tmp_path, rows[2:])
    visited = len(machine.visits)
    Reviser(settings(), tmp_path, 1).run()
    assert set(machine.visits[visited:]) - reference_names(machine) == {worse.schedule}, "the widest spread comes first"
    Reviser(settings(), tmp_path, 5).run()
    after = {r.record_id: r for r in read_records(tmp_path)}
    assert len(after) == 12 and after[calm.record_id] == calm
    settled, kept = after[noisy.record_id], after[worse.record_id]
    assert settled.latency_s == 1e-3 and not settled.flagged and settled.extra["revised_by"] == noisy.protocol
    assert settled.extra["samples_per_visit"] == "10,10,10,10,10" and len(settled.latency_samples_s) == 50
    # The fastest visit of all is an old one: it stays the label, and that no other agrees stays said.
    assert kept.latency_s == pytest.approx(0.9e-3, rel=1e-5) and kept.flagged
    assert kept.spread == pytest.approx(1 / 9, rel=1e-3)


def spread_out(record, minima: tuple[float, ...]):
    """The record as three visits would have left it that did not agree."""
    samples = tuple(m for m in minima for _ in range(10))
    extra = {**record.extra, "samples_per_visit": "10,10,10", "quiet_visits": "1,1,1"}
    spread = sorted(minima)[1] / min(minima) - 1
    return dataclasses.replace(
        record, latency_samples_s=samples, latency_s=min(minima), spread=spread, flagged=True, extra=extra
    )


def reference_names(machine: Machine) -> set[str]:
    """What the make-believe machine was asked to run besides programs of a data set."""
    return {name for name in machine.visits if not name.startswith("[[")}
