"""A data set in one small folder: evaluation on a machine without TVM starts from it. No pickle."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdmpp.ast.table import read_asts, write_asts
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.files import read_json, read_table, write_atomic, write_json, write_table
from cdmpp.data.records import read_tasks, write_tasks
from cdmpp.errors import DataError
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.noise import NoiseFloor

_COLUMNS = ("record_id", "task_id", "device", "latency_s", "spread")


def save_bundle(folder: Path, data: EvaluationData, name: str) -> None:
    """Write ``asts``, ``programs`` and ``tasks`` as Parquet and the per-store features as npz (half precision).

    The workload texts of the tasks stay behind: only TVM reads them. ``bundle.json`` comes last, so a folder
    without it is incomplete.
    """
    folder, dataset = Path(folder), data.dataset
    (folder / "bundle.json").unlink(missing_ok=True)
    write_asts(folder / "asts.parquet", [str(r) for r in dataset.record_ids], dataset.asts)
    values = (dataset.record_ids, dataset.task_ids, dataset.devices, dataset.latency_s, dataset.spread)
    arrays = [pa.array(list(map(str, v)) if v.dtype.kind in "OU" else v) for v in map(np.asarray, values)]
    write_table(folder / "programs.parquet", pa.table(dict(zip(_COLUMNS, arrays, strict=True))))
    (folder / "tasks.parquet").unlink(missing_ok=True)
    write_tasks(folder, (dataclasses.replace(task, workload="") for task in dataset.tasks.values()))
    if data.per_store is not None:
        half = data.per_store.astype(np.float16)
        write_atomic(folder / "per_store.npz", lambda path: _save_npz(path, half))
    noise = dataclasses.asdict(data.noise) if data.noise and data.noise.n_programs else None
    info = {"name": name, "source": dataset.source, "programs": len(dataset.record_ids), "noise": noise}
    write_json(folder / "bundle.json", info)


def load_bundle(folder: Path) -> tuple[EvaluationData, str]:
    """Data and name of a bundle.

    Raises:
        DataError: not a bundle, damaged, or made by another extractor version.
    """
    folder = Path(folder)
    info = read_json(folder / "bundle.json")
    table = read_table(folder / "programs.parquet")
    record_ids, asts = read_asts(folder / "asts.parquet")
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in _COLUMNS}
    if [str(r) for r in columns["record_id"]] != record_ids:
        raise DataError(f"{folder}: programs.parquet and asts.parquet do not belong together; save the bundle again")
    dataset = LatencyDataset(
        record_ids=columns["record_id"].astype(str),
        task_ids=columns["task_id"].astype(str),
        devices=columns["device"].astype(str),
        latency_s=columns["latency_s"].astype(np.float64),
        spread=columns["spread"].astype(np.float64),
        asts=asts,
        tasks=read_tasks(folder),
        source=str(info["source"]),
    )
    per_store = _load_npz(folder / "per_store.npz", len(record_ids))
    noise = NoiseFloor(**info["noise"]) if info.get("noise") else None
    return EvaluationData(dataset, per_store, noise), str(info["name"])


def _save_npz(path: Path, values: np.ndarray) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, per_store=values)


def _load_npz(path: Path, n_programs: int) -> np.ndarray | None:
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            values = stored["per_store"].astype(np.float32)
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); save the bundle again") from error
    if len(values) != n_programs:
        raise DataError(f"{path} holds {len(values)} rows for {n_programs} programs; save the bundle again")
    return values
