"""Pictures are written, with labels and units, also for little or odd data."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cdmpp.data.plots import save_plot
from cdmpp.evaluation.plots import learning_curve, save_training_plots, scatter

HISTORY = [
    {"member": m, "epoch": e, "train_loss": 1 / (e + 1), "val_mape": 50 / (e + 1)} for m in (0, 1) for e in range(4)
]


@pytest.mark.parametrize("n", [1, 300])
def test_training_plots(tmp_path, n):
    rng = np.random.default_rng(0)
    true = 10 ** rng.uniform(-6, -2, n)
    saved = save_training_plots(tmp_path, true, true * rng.uniform(0.5, 2, n), ["conv2d"] * n, HISTORY, "a100")
    assert [path.name for path in saved] == [
        "predicted_vs_measured.png", "error_by_op_class.png", "error_by_latency.png", "learning_curve.png",
    ]  # fmt: skip
    assert all(path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 5000 for path in saved)


def test_axes_carry_units():
    axes = Figure().add_subplot()
    scatter(axes, np.array([1e-5, 2e-5]), np.array([1e-5, 3e-5]))
    assert "µs" in axes.get_xlabel() and "µs" in axes.get_ylabel() and axes.get_legend() is not None
    axes = Figure().add_subplot()
    learning_curve(axes, HISTORY)
    assert axes.get_xlabel() == "epoch" and len(axes.lines) == 2


def numbers_shown(axes) -> int:
    """Tick labels that lie inside the axis."""
    low, high = axes.get_ylim()
    shown = zip(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()], strict=True)
    return sum(bool(text) and low <= place <= high for place, text in shown)


@pytest.mark.parametrize("spread", [0.02, 0.3, 20.0, 2000.0])
def test_both_axes_of_a_learning_curve_have_a_name_a_unit_and_numbers(spread):
    """Late in training errors move from 16 to 14 %: an axis with a number at 10, 20 and 50 only would show none."""
    history = [
        {"epoch": e, "train_loss": 0.11 * (1 + spread / (e + 1)), "val_mape": 14 * (1 + spread / (e + 1))}
        for e in range(8)
    ]
    figure = Figure()
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    learning_curve(left, history)
    figure.canvas.draw()
    right = next(axes for axes in figure.axes if axes is not left)
    assert left.get_ylabel() == "training loss (no unit)" and right.get_ylabel() == "validation error (%)"
    assert left.get_xlabel() == "epoch"
    assert min(numbers_shown(left), numbers_shown(right)) >= 3


def test_a_colour_that_few_points_have_stays_itself(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng, names = np.random.default_rng(0), ("blue", "orange", "green", "red", "brown", "pink", "olive", "cyan", "gray")

    def draw(axes):
        for name in names:
            axes.plot(*rng.normal(size=(2, 3000)), ".", color=f"tab:{name}", markersize=1.5)
        axes.plot([6.0], [6.0], "s", color="tab:purple", markersize=6)

    save_plot(tmp_path / "points.png", (6.0, 4.0), "", draw)
    with image.open(tmp_path / "points.png") as saved:
        pixels = np.asarray(saved.convert("RGB")).reshape(-1, 3).astype(int)
    purple = 255 * np.array(to_rgb("tab:purple"))
    assert np.abs(pixels - purple).max(axis=1).min() < 16
