"""Measured networks of NeuSight: rows of ``model_labels.parquet``, or the files of a clone, which have more devices."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cdmpp.data.importers.neusight_source import DEVICES
from cdmpp.platform.files import read_json

TABLE = "model_labels.parquet"
_LABELS, _SUMMARY, _CONFIGS = "label", "summary/summary.csv", "data/DLmodel_configs"
_NAMES = DEVICES | {"NVIDIA H100 80GB HBM3": "h100"}
FOLDERS = {name.replace(" ", "_"): device for name, device in _NAMES.items()}
_PARTS = ("e2e", "fw", "bwall")


def labels(data: Path) -> list[dict[str, Any]]:
    """Return a row for each network that NeuSight measured whole and predicted, without mixtures of experts.

    ``data``: a folder with ``model_labels.parquet`` and ``configs/``, or ``scripts/asplos`` of a clone of NeuSight.
    """
    rows = pq.read_table(data / TABLE).to_pylist() if (data / TABLE).is_file() else list(_of_clone(data))
    wanted = (row for row in rows if row["option"] == "" and row["neusight_ape"] is not None)
    return [row for row in wanted if not row["model"].startswith("switch")]


def configs(data: Path) -> Path:
    """Return the folder with the networks' configurations."""
    return data / "configs" if (data / TABLE).is_file() else data / _CONFIGS


def _of_clone(data: Path) -> Iterator[dict[str, Any]]:
    with (data / _SUMMARY).open(newline="") as file:
        predicted = {
            (_NAMES[row["device"].replace("_", " ")], row["model_name"], row["mode"], int(row["seqlen"]),
             int(row["batch"])): row
            for row in csv.DictReader(file)
            if row["device"].replace("_", " ") in _NAMES and row["option"] in ("", "nan")
        }  # fmt: skip
    for folder, device in FOLDERS.items():
        for path in sorted((data / _LABELS / folder).glob("*.json")):
            model, mode, seq, batch, *option = path.stem.split("-")
            key = device, model, mode, int(seq), int(batch)
            if option or (row := predicted.get(key)) is None:
                continue
            measured, theirs = read_json(path), _seconds(row, "neusight_all_", ("e2e", "fw", "bwall"))
            own = _seconds(measured, "", _PARTS)
            layers = read_json(data / _CONFIGS / f"{model}.json")
            yield {
                **dict(zip(("device", "model", "mode", "seq", "batch"), key, strict=True)),
                "option": "",
                "num_layer": layers.get("n_layer") or layers.get("num_hidden_layers"),
                **{f"label_{part}_s": value for part, value in zip(("e2e", "fw", "bw"), own, strict=True)},
                **{f"neusight_{part}_s": value for part, value in zip(("e2e", "fw", "bw"), theirs, strict=True)},
                "neusight_ape": None if math.isnan(theirs[0]) else 100 * abs(theirs[0] / own[0] - 1),
            }


def _seconds(row: Mapping[str, Any], prefix: str, parts: tuple[str, ...]) -> list[float]:
    return [1e-3 * float(row[f"{prefix}{part}_latency"] or "nan") for part in parts]
