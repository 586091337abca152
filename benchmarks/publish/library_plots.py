"""Pictures of a shipped model of library operators, for ``docs/framework-operators.md``.

``python -m benchmarks.publish.library_plots data=outputs/operators``: predicted against measured latency of the calls
of its test part, a panel a device, and its error on each device beside that of a model that never saw the device.
``data`` holds the data sets that it was trained and tested on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cdmpp
from benchmarks.library_devices import CLASSES
from benchmarks.publish.command_line import run
from cdmpp.data.plots import save_plot
from cdmpp.data.sources import load_devices
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.predict.rows import predict_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_COLOURS = ("#1f6fb4", "#e07b1a", "#c0392b", "#8d6bb0", "#4fa36b", "#17a2b8", "#777777")
"""Colours of ``CLASSES``, in their order, and of all other operators."""


def device_panels(
    axes: Axes, true_s: np.ndarray, predicted_s: np.ndarray, devices: np.ndarray, classes: np.ndarray
) -> None:
    """Predicted against measured of m calls in place of ``axes``: a panel a device, a colour a class."""
    names = sorted(set(devices.tolist()))
    named = np.array([CLASSES.get(one, "other") for one in classes.tolist()])
    rows = -(-len(names) // _COLUMNS)
    figure = axes.figure
    axes.remove()
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    true, predicted = 1e6 * np.asarray(true_s), 1e6 * np.asarray(predicted_s)
    span = np.array([min(true.min(), predicted.min()) / 1.3, max(true.max(), predicted.max()) * 1.3])
    for panel, name in zip(panels, names, strict=False):
        mine = devices == name
        panel.plot(span, span, color="black", linewidth=0.6)
        for label, colour in zip((*CLASSES.values(), "other"), _COLOURS, strict=True):
            of_class = mine & (named == label)
            panel.plot(true[of_class], predicted[of_class], ".", color=colour, markersize=1.5, label=label)
        ape = 100 * np.abs(predicted[mine] / true[mine] - 1)
        facts = f"{mine.sum():,} calls\nMAPE {ape.mean():.1f} %\nmedian {np.median(ape):.1f} %"
        panel.text(0.96, 0.04, facts, transform=panel.transAxes, ha="right", va="bottom", fontsize=7)
        panel.set(xscale="log", yscale="log", xlim=span, ylim=span, aspect="equal")
        panel.set_title(name, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    for empty in panels[len(names) :]:
        empty.axis("off")
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), markerscale=6, frameon=False)
    figure.supxlabel("measured latency (µs)", fontsize=9)
    figure.supylabel("predicted latency (µs)", fontsize=9)


def left_out_bars(axes: Axes, card: Mapping[str, Any]) -> None:
    """Error on each device as the model knows it, and of a model without any record of it."""
    known, unknown = card["test"]["by_device"], card["left_out"]
    names = sorted(unknown, key=lambda name: unknown[name]["mape"])
    for at, (found, label, colour) in enumerate(
        ((known, "other calls of it learned", "#a6c8e4"), (unknown, "no call of it learned", "#1f6fb4"))
    ):
        places = np.arange(len(names)) + 0.4 * (at - 0.5)
        axes.bar(places, [found[name]["mape"] for name in names], 0.38, color=colour, label=label)
        medians = [found[name]["median_ape"] for name in names]
        axes.plot(places, medians, "_", color="black", markersize=9, label="median" if at else None)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set(ylabel="MAPE (%), calls of sizes not learned")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)


def main(data: str, model: str, docs: str) -> None:
    """Draw both pictures."""
    predictor = cdmpp.load_model(model)
    if predictor.features != "library" or "left_out" not in predictor.card:
        raise DataError(f"{model} is no shipped model of library operators: it tells of no device left out")
    records = load_devices(sorted(predictor.trained_on), (Path(data),), features="library")
    rows = make_split(records, predictor.card["split"]["name"], predictor.card["split"]["seed"]).test
    predicted_s = predict_rows(predictor, records, rows)
    of_rows = (records.latency_s[rows], predicted_s, records.devices[rows], records.op_classes[rows])
    names = ("true_s", "predicted_s", "devices", "classes")
    panels = partial(device_panels, **dict(zip(names, of_rows, strict=True)))
    path = Path(docs) / "images" / Path(model).name
    print(save_plot(path.with_name(f"{path.name}-measured.png"), (9.0, 7.4), "", panels))
    bars = partial(left_out_bars, card=predictor.card)
    print(save_plot(path.with_name(f"{path.name}-left-out.png"), (7.6, 4.0), "", bars))


if __name__ == "__main__":
    run(main, data="???", model="torch-gpus", docs="docs")
