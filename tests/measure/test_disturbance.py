"""A busy machine: what is measured on it is refused, or recorded with a mark where that is wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdmpp
from cdmpp import cli, devices
from cdmpp.data.records import read_info, read_records
from cdmpp.errors import DataError
from cdmpp.measure import disturbance
from cdmpp.measure.again import Reviser
from cdmpp.measure.collector import BUSY_WINDOWS, Collector
from cdmpp.measure.disturbance import LOAD_LIMIT, SPREAD_LIMIT, Disturbance
from cdmpp.measure.protocol import Visits
from cdmpp.recipes import calibrate as recipe
from cdmpp.recipes import calibration_calls
from cdmpp.recipes.calibrate import FEWEST_TASKS, CalibrateSettings, calibrate
from tests.measure.machine import ALL, Machine, settings

DEVICE = "xeon-emeraldrapids"


def visits(spread: float) -> Visits:
    return Visits([(1.0,), (1.0 + spread,)], [True, True])


def test_each_limit_is_named_with_what_was_found() -> None:
    assert Disturbance(0.9, 2, 0.04).reasons == []
    assert Disturbance(None, 2, None).reasons == []
    assert Disturbance(7.0, 2).reasons == ["others load its 2 processors with 7.0, at most 1 may be"]
    assert "differ by 9.0% (median), at most 5% may be" in Disturbance(0.0, 2, 0.09).reasons[0]
    with pytest.raises(DataError, match="(?s)busy.*7.0.*Nothing was measured.*with --force"):
        Disturbance(7.0, 2).check("--force")


def test_the_spread_is_the_median_of_enough_programs() -> None:
    assert Disturbance.of_visits([visits(x) for x in (0.0, 0.01, 0.3, 0.02, 0.4)]).spread == pytest.approx(0.02)
    assert Disturbance.of_visits([visits(0.3)]).spread is None


def test_data_sets_that_ship_lie_below_the_limit() -> None:
    medians = []
    for folder in sorted((Path(cdmpp.__file__).parents[1] / "datasets").glob("*/records")):
        tables = [pq.read_table(path, columns=["spread"]) for path in folder.glob("*.parquet")]
        medians.append(np.median(pa.concat_tables(tables).column("spread")))
    assert len(medians) > 5 and min(medians) > 0.002 and max(medians) < 0.038 < SPREAD_LIMIT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts what runs at each moment")
def test_the_load_counts_processes_of_others() -> None:
    before = disturbance.load_of_others()
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        after = disturbance.load_of_others()
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert after is not None and before is not None and after > 2.5


def test_a_loaded_machine_is_not_measured_on(machine: Machine, tmp_path: Path) -> None:
    machine.load = 1e3
    with pytest.raises(DataError, match=r"(?s)busy: others load.*force=true"):
        Collector(settings(), tmp_path / "set").run()
    assert machine.visits == [] and not (tmp_path / "set").exists()
    found = Collector(settings(force=True), tmp_path / "set").run()
    assert found["programs"] == ALL
    assert {record.extra["load"].split("/")[0] for record in read_records(tmp_path / "set")} == {"1000.0"}


def test_programs_of_a_busy_window_are_left_to_a_rerun(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine.busy_visits = range(0, 25)
    found = Collector(settings(), tmp_path).run()
    assert 0 < found["busy_not_recorded"] == ALL - found["programs"]
    assert "are not recorded: visits to the same program differ by" in caplog.text
    assert read_info(tmp_path)["programs"] == found["programs"] == len(read_records(tmp_path))
    assert not any(record.flagged for record in read_records(tmp_path))
    machine.busy_visits = range(0)
    again = Collector(settings(), tmp_path).run()
    assert again["programs"] == ALL and "busy_not_recorded" not in again


def test_load_that_comes_while_measuring_ends_it(machine: Machine, tmp_path: Path) -> None:
    answer = machine.answer

    def later(message: dict) -> dict:
        machine.load = 50.0 if machine.visits else 0.0
        return answer(message)

    machine.answer = later  # type: ignore[method-assign]
    with pytest.raises(DataError, match="0 programs were recorded, [1-9][0-9]* were timed and are not"):
        Collector(settings(), tmp_path).run()
    assert read_records(tmp_path) == [] and len(machine.visits) <= 2 * 6 * (BUSY_WINDOWS + 1)


def test_doubtful_labels_are_bettered_whatever_they_differ_by(machine: Machine, tmp_path: Path) -> None:
    machine.busy_visits = range(0, 10**6)
    Collector(settings(force=True), tmp_path).run()
    assert all(record.flagged for record in read_records(tmp_path))
    Reviser(settings(), tmp_path, ALL).run()
    assert {len(record.extra["quiet_visits"].split(",")) for record in read_records(tmp_path)} == {6}


@pytest.fixture
def calibrated(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Calibration of PyTorch's calls on the make-believe machine."""
    monkeypatch.setattr(recipe, "probe", lambda: type("Found", (), {"spec": lambda _: {"clock_mhz": 3000.0}})())
    monkeypatch.setattr(recipe, "_SEPARATION_S", 0.0)
    monkeypatch.setattr(calibration_calls, "_POOL", 3)

    def run(**changes):
        return calibrate(CalibrateSettings(DEVICE, tmp_path, "torch-gpus", 2.5, False, "torch", 1, **changes))

    return run


def test_a_quiet_machine_is_calibrated_and_says_how_quiet(calibrated, machine: Machine, tmp_path: Path) -> None:
    found = calibrated()
    assert found["busy"] == [] and found["machine"]["load"] == pytest.approx(0.2, abs=0.1)
    assert found["machine"]["spread"] == 0.0 and found["programs"] >= FEWEST_TASKS
    assert cdmpp.load_model(tmp_path / "model").card["calibrated"]["machine"] == found["machine"]


def test_a_busy_machine_is_not_calibrated_on(calibrated, machine: Machine, tmp_path: Path) -> None:
    machine.load = 3.5 * devices.get(DEVICE).spec["core_count"] * 100
    with pytest.raises(DataError, match="(?s)others load.*Nothing was measured.*--force"):
        calibrated()
    assert machine.visits == [] and list(tmp_path.iterdir()) == []


def test_what_a_busy_run_measured_is_kept_and_not_used(calibrated, machine: Machine, tmp_path: Path) -> None:
    machine.busy_visits = range(0, 10**6)
    with pytest.raises(DataError, match="(?s)differ by 9.1%.*No model was stored"):
        calibrated()
    assert not (tmp_path / "model").exists() and len(read_records(tmp_path / "records")) >= FEWEST_TASKS
    visited = len(machine.visits)
    forced = calibrated(force=True)  # of the records that are there
    assert len(machine.visits) == visited and "differ by 9.1%" in forced["busy"][0]
    assert cdmpp.load_model(tmp_path / "model").card["calibrated"]["busy"] == forced["busy"]
    machine.busy_visits = range(0)
    quiet = calibrated()  # of records of its own
    assert len(machine.visits) > visited and quiet["busy"] == [] and quiet["programs"] == forced["programs"]


def test_the_command_prints_load_and_spread(calibrated, machine: Machine, tmp_path: Path, capsys) -> None:
    command = ["model", "calibrate", "--device", DEVICE, "--runtime", "torch", "--calls", "1", "--out", str(tmp_path)]
    machine.load = 1e3
    assert cli.main(command) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert cli.main([*command, "--force"]) == 0
    shown = capsys.readouterr()
    assert "load of others 1000.0" in shown.out and "visits differ by 0.0%" in shown.out
    assert "this machine is busy" in shown.err and LOAD_LIMIT == 0.5
