"""Pictures of library operators: a panel a device with its own error, bars as the card tells."""

from __future__ import annotations

import numpy as np
import pytest

import cdmpp
from benchmarks.publish.library_plots import device_panels, left_out_bars, main
from cdmpp.errors import DataError


@pytest.fixture()
def axes():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    return figure.add_subplot()


def test_each_device_has_a_panel_with_its_own_error_and_every_call(axes):
    figure = axes.figure
    true = np.array([1e-5, 2e-5, 4e-5, 1e-3, 2e-3])
    predicted = true * [1.1, 1.1, 1.1, 0.5, 0.5]
    devices = np.array(["t4", "t4", "t4", "p4", "p4"])
    classes = np.array(["dense", "conv2d", "pool", "dense", "dense"])
    device_panels(axes, true, predicted, devices, classes)
    panels = {panel.get_title(): panel for panel in figure.axes if panel.get_title()}
    assert set(panels) == {"p4", "t4"}
    assert "3 calls\nMAPE 10.0 %" in panels["t4"].texts[0].get_text()
    assert "2 calls\nMAPE 50.0 %" in panels["p4"].texts[0].get_text()
    drawn = {line.get_label(): line.get_xdata() for line in panels["t4"].lines}
    assert [len(drawn[name]) for name in ("linear", "conv", "other", "bmm")] == [1, 1, 1, 0]
    assert drawn["conv"] == pytest.approx([20])
    assert len(figure.legends) == 1


def test_bars_are_the_errors_of_the_card(axes):
    card = cdmpp.load_model("torch-gpus").card
    left_out_bars(axes, card)
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert set(names) == set(card["left_out"])
    known, unknown = axes.containers
    assert [bar.get_height() for bar in known] == [card["test"]["by_device"][name]["mape"] for name in names]
    assert [bar.get_height() for bar in unknown] == sorted(one["mape"] for one in card["left_out"].values())


def test_a_model_of_tensor_programs_is_refused(tmp_path):
    with pytest.raises(DataError, match="xeon-icelake is no shipped model of library operators"):
        main(str(tmp_path), "xeon-icelake", str(tmp_path))
