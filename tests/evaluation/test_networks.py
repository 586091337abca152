"""Networks predicted and measured: what runs beside the kernels is found again, errors add up, cells come back."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.devices.launch_overheads import LaunchOverheads
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.network_fit import fit_launch_overheads
from cdmpp.evaluation.network_row import NetworkRow, coverage, network_errors, read_rows, summary, write_rows
from cdmpp.evaluation.network_session import NetworkSettings, fitted, rows_of, run_networks, write_figures
from cdmpp.evaluation.networks import (
    CallCell,
    NetworkCell,
    cell_path,
    read_cells,
)
from cdmpp.network.compiled.cold import far_of, levels_of
from cdmpp.network.compiled.measured import SHORT_S, quiet_seconds
from cdmpp.network.compiled.residency import Touch
from cdmpp.platform.files import write_json

MIB = 2**20
SHEET = devices.get("epyc-genoa")
TRUE = replace(
    SHEET, launch_overheads=LaunchOverheads(call_s=2e-6, run_s=15e-6, exposed_share=0.4, resident_bytes=8 * MIB)
)


def cell(seed: int, network: str = "", **changes: object) -> NetworkCell:
    random = np.random.default_rng(seed)
    calls = []
    for place in range(int(random.integers(5, 60))):
        alone, since = float(random.lognormal(-9, 1)), int(random.integers(MIB // 2, 40 * MIB))
        touched = (Touch(int(random.lognormal(11, 1)), since, False),)
        predicted, far = alone * float(random.lognormal(0, 0.1)), far_of(touched, levels_of(TRUE))
        calls.append(CallCell(f"k#{place}", "dense", predicted, alone, 1.5 * alone, alone + 2e-6 + 0.4 * far, touched))
    alone_s, far_s = sum(c.alone_s for c in calls), sum(far_of(c.touches, levels_of(TRUE)) for c in calls)
    real = alone_s + 15e-6 + 2e-6 * len(calls) + 0.4 * far_s
    assert real < SHORT_S
    made = NetworkCell(
        network or f"n{seed}", 1, "epyc-genoa", "best_of:16", "m", False, tuple(calls), (real, 1.1 * real), 2000, 1000,
        real / 2, "here",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_runs_beside_the_kernels_is_found_again():
    fitted = fit_launch_overheads([cell(seed) for seed in range(12)], SHEET)
    found, true = (
        (one.call_s, one.run_s, one.exposed_share, one.resident_bytes) for one in (fitted, TRUE.launch_overheads)
    )
    assert found == pytest.approx(true, rel=1e-3)


def test_a_few_calls_that_another_guest_slowed_change_little():
    cells = [cell(seed) for seed in range(12)]
    slowed = [
        replace(one, calls=(replace(one.calls[0], inside_s=3 * one.calls[0].inside_s), *one.calls[1:])) for one in cells
    ]
    calm, disturbed = (fit_launch_overheads(given, SHEET) for given in (cells, slowed))
    assert disturbed.exposed_share == pytest.approx(calm.exposed_share, rel=0.15)
    assert disturbed.call_s == pytest.approx(calm.call_s, rel=0.15)


def test_of_a_long_run_the_quiet_moments_of_its_kernels_count():
    assert quiet_seconds([0.012, 0.011], [0.004, 0.005]) == 0.011
    assert quiet_seconds([0.12, 0.11], [0.04, 0.05]) == pytest.approx(0.09)
    assert quiet_seconds([0.08, 0.09], [0.04, 0.05]) == 0.08


def test_three_networks_do_not_tell():
    with pytest.raises(CdmppError, match="3 measured networks"):
        fit_launch_overheads([cell(seed) for seed in range(3)], SHEET)


def test_with_few_networks_the_sheet_stands_and_it_is_said(caplog):
    few = [cell(seed) for seed in range(3)]
    assert fitted(few) == {SHEET.name: SHEET}
    assert "3 measured networks" in caplog.text and "what the file of epyc-genoa says stands" in caplog.text
    more = fitted([*few, cell(3), cell(4)])
    assert more[SHEET.name].launch_overheads.resident_bytes == TRUE.launch_overheads.resident_bytes
    held_out = [replace(one, held_out=True) for one in few]
    assert fitted([*held_out, cell(3)]) == {SHEET.name: SHEET}


def test_parts_of_the_error_add_up():
    errors = cell(1).errors(replace(SHEET, launch_overheads=LaunchOverheads(call_s=3e-6, run_s=0.0, exposed_share=0.1)))
    assert errors["kernels"] + errors["cold"] + errors["overhead"] == pytest.approx(errors["replay"])
    exact = cell(1).errors(TRUE)
    assert exact["cold"] + exact["overhead"] == pytest.approx(0), "what calls cost is seen within them"
    assert exact["sum"] < exact["without_cold"] < exact["replay"]


def test_of_one_network_the_worst_batch_counts():
    cells = [cell(1, "resnet18"), cell(2, "resnet18@b4"), cell(3, "gpt2")]
    found = network_errors(rows_of(cells, {"epyc-genoa": TRUE}))["epyc-genoa"]["m"]["best_of"]
    logs = [math.log(one.measured_s / (one.kernels_s + one.beside_s(TRUE))) for one in cells]
    assert set(found) == {"resnet18", "gpt2"}
    assert found["resnet18"] == pytest.approx(max(logs[:2], key=abs), abs=1e-5)


def test_coverage_leaves_each_network_out():
    errors = {f"n{i}": 0.01 * (i + 1) for i in range(9)}
    assert coverage(errors, 0.8) == pytest.approx(8 / 9), "the largest lies outside what the others make"
    assert coverage({"a": 0.1, "b": 0.2}, 0.8) is None


def test_a_session_measures_what_is_missing_and_goes_on_without_what_fails(tmp_path, monkeypatch):
    asked = []

    def measure(network, batch, device, schedule, model, held_out):
        asked.append((network, batch, held_out))
        if network == "mlp":
            raise CdmppError("it does not run")
        return cell(len(asked), network, batch=batch, held_out=held_out, schedule=schedule)

    monkeypatch.setattr("cdmpp.evaluation.network_session.measure_cell", measure)
    zoo = {name: {"input": {"vector": 8}} for name in ("mlp", "unet", "gpt2")}
    settings = NetworkSettings(
        "epyc-genoa", zoo, ["mlp", "unet"], ["gpt2"], [1, 4], ["best_of:16"], visits=1, out=tmp_path
    )
    cells = run_networks(settings)
    assert len(asked) == 6 and len(cells) == 4
    assert {one.network for one in cells if one.held_out} == {"gpt2"}
    assert run_networks(settings) == cells and len(asked) == 8, "only what failed is tried again"
    made = rows_of(cells, {"epyc-genoa": TRUE})
    write_figures(made, {"epyc-genoa": TRUE}, tmp_path)
    rows = summary(made)
    assert [row["networks"] for row in rows] == [2, 2] and rows[0]["memory_ratio"] == 2.0
    assert rows[0]["times_eager"] == pytest.approx(2.0)


def test_later_visits_come_after_all_others_and_the_least_counts(tmp_path, monkeypatch):
    asked = []

    def measure(network, batch, device, schedule, model, held_out):
        asked.append(network)
        one, factor = (
            cell(len(network), network),
            1 + 0.1 * (asked.count(network) - 1) * (1 if network == "mlp" else -1),
        )
        calls = tuple(replace(call, inside_s=factor * call.inside_s) for call in one.calls)
        return replace(one, calls=calls, samples_s=tuple(factor * seconds for seconds in one.samples_s))

    monkeypatch.setattr("cdmpp.evaluation.network_session.measure_cell", measure)
    zoo = {name: {"input": {"vector": 8}} for name in ("mlp", "unet")}
    settings = NetworkSettings("epyc-genoa", zoo, ["mlp", "unet"], [], [1], ["best_of:16"], visits=2, out=tmp_path)
    mlp, unet = run_networks(settings)
    assert asked == ["mlp", "unet", "mlp", "unet"] and mlp.visits == unet.visits == 2
    assert mlp.measured_s == cell(3, "mlp").measured_s and len(mlp.samples_s) == 4
    assert unet.measured_s == pytest.approx(0.9 * cell(4, "unet").measured_s)
    assert unet.inside_s == pytest.approx(0.9 * cell(4, "unet").inside_s)
    assert run_networks(settings) == [mlp, unet] and len(asked) == 4
    other = replace(cell(4, "unet"), model="another")
    assert unet.with_visit(other) == other, "other programs are not the same measurement"


def test_another_model_predicts_what_was_measured_once(tmp_path, monkeypatch):
    measured, asked = cell(1, "mlp", model="m"), []

    def again(found, device, model):
        asked.append((found, model))
        return replace(found, model="few", calls=tuple(replace(c, predicted_s=2 * c.predicted_s) for c in found.calls))

    monkeypatch.setattr("cdmpp.evaluation.network_session.measure_cell", lambda *_: measured)
    zoo = {"mlp": {"input": {"vector": 8}}}
    settings = NetworkSettings("epyc-genoa", zoo, ["mlp"], [], [1], ["best_of:16"], visits=1, out=tmp_path)
    assert run_networks(settings) == [measured]
    monkeypatch.setattr("cdmpp.evaluation.network_session.measure_cell", None)
    monkeypatch.setattr("cdmpp.evaluation.network_session.predicted_again", again)
    both = run_networks(replace(settings, others=["outputs/few"]))
    assert asked == [(measured, "outputs/few")] and {one.model for one in both} == {"m", "few"}
    assert run_networks(replace(settings, others=["outputs/few"])) == both and len(asked) == 1
    rows = summary(rows_of(both, {"epyc-genoa": TRUE}))
    assert [(row["model"], row["networks"]) for row in rows] == [("few", 1), ("m", 1)]
    cells = [cell(seed) for seed in range(6)]
    twice = [*cells, *(replace(one, model="few") for one in cells)]
    assert fit_launch_overheads(twice, SHEET) == fit_launch_overheads(cells, SHEET)


def test_a_cell_comes_back_and_a_damaged_one_is_named(tmp_path):
    path = cell_path(tmp_path, "epyc-genoa", "best_of:16", "n1", 1)
    write_json(path, asdict(cell(1)))
    assert read_cells(tmp_path) == [cell(1)]
    write_json(path, {"network": "n1"})
    with pytest.raises(DataError, match=r"n1-b1\.json is no cell"):
        read_cells(tmp_path)


def test_rows_come_back_from_a_file(tmp_path):
    rows = [NetworkRow.of(one, TRUE) for one in (cell(1), cell(2, held_out=True, eager_s=None))]
    write_rows(tmp_path / "rows.csv", rows)
    back = read_rows(tmp_path / "rows.csv")
    assert [row.key for row in back] == [row.key for row in rows]
    assert back[1].held_out is True and back[1].eager_pytorch_s is None and back[1].times_eager is None
    assert back[0].replay_error == pytest.approx(rows[0].replay_error, rel=1e-5)
    write_rows(tmp_path / "again.csv", back)
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "rows.csv").read_text()
    for damaged in ("device\nepyc", (tmp_path / "rows.csv").read_text().replace("True", "maybe")):
        (tmp_path / "rows.csv").write_text(damaged)
        with pytest.raises(DataError, match="no table of measured networks"):
            read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("device", ["a100", "epyc-9005-64"])
def test_what_this_machine_is_not_is_refused(device, tmp_path):
    with pytest.raises(CdmppError):
        NetworkSettings(device, {}, [], [], out=tmp_path)
